// Layers given up at any moment by anybody, while the ranks run ahead of one another and threads lose the
// processor between two looks (LAYERCAST_PAUSE_POINT): a layer is done on all ranks or given up on all, what
// `cancel` promised holds, and nothing of it fails the group.
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>

#include "fault.h"
#include "group.h"

using namespace layercast;

namespace {

constexpr std::size_t kRanks = 3;

struct Fates {
  enum What { kUnknown, kDone, kCancelled, kFailed };
  explicit Fates(std::uint64_t epochs) : granted(epochs + 1), outcome(epochs + 1) {}
  // What a rank made of the layer must be what the others did.
  void note(std::uint64_t epoch, What what) {
    int before = kUnknown;
    if (outcome[epoch].compare_exchange_strong(before, what)) return;
    if (before != what) std::fprintf(stderr, "epoch %lu: done and given up\n", epoch);
    CHECK(before == what);
  }
  std::vector<std::atomic<bool>> granted;  // cancel() said so
  std::vector<std::atomic<int>> outcome;
};

// Something fails at any moment: the layers before it are done on all ranks, its own on all or on none.
void round_of_failure(std::uint64_t seed) {
  constexpr std::uint64_t kEpochs = 1'000'000;
  Group group({kRanks, {60, 8}, 2, 3, 2, 300, false});
  const auto writer = make_pattern_writer(kSeed);
  std::mt19937_64 random(seed);
  std::thread culprit([&, delay = random() % 4000, rank = random() % kRanks] {
    usleep(static_cast<useconds_t>(delay));
    Error error(Code::kWriter, "a failure at any moment");
    group[rank].fail(error);
  });
  std::mutex mutex;
  std::map<std::uint64_t, Fates::What> fates;
  const std::size_t failed = group.each([&](std::size_t rank) {
    for (std::uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      Fates::What what = Fates::kUnknown;
      const auto note = [&] {
        const std::lock_guard lock(mutex);
        const auto [at, is_new] = fates.emplace(epoch, what);
        if (!is_new && at->second != what) {
          std::fprintf(stderr, "seed %lu, rank %zu: epoch %lu is done and failed\n", seed, rank, epoch);
        }
        CHECK(is_new || at->second == what);
      };
      group[rank].join({.epoch = epoch, .layer = 1, .streamed = 2});
      try {
        if (rank == 0) group[rank].run(epoch, 1, 2, *writer);
        group[rank].wait(epoch);
      } catch (const Error&) {
        what = Fates::kFailed;
        note();
        throw;
      }
      group.check(rank, 1);
      what = Fates::kDone;
      note();
    }
  });
  culprit.join();
  CHECK(failed == kRanks);
}

// `skipping`: who knows that a layer is given up may go on without it.
void round(std::uint64_t seed, bool skipping) {
  constexpr std::uint64_t kEpochs = 150;
  Group group({kRanks, {500, 8}, 6, 3, 2, 300, seed % 2 == 1});
  const auto writer = make_pattern_writer(kSeed);
  Fates fates(kEpochs);
  std::atomic<std::uint64_t> newest{0};
  std::atomic<bool> over{false};
  const auto give_up = [&](std::size_t rank, std::uint64_t epoch) {
    // The last one brings all together; every eighth is left to finish, however slow the machine.
    if (epoch < 1 || epoch >= kEpochs || epoch % 8 == 0) return;
    bool granted = false;
    try {
      granted = group[rank].cancel(epoch);
    } catch (const Error& error) {
      if (error.code != Code::kState) throw;
    }
    if (!granted) return;
    CHECK(fates.outcome[epoch].load() != Fates::kDone);
    fates.granted[epoch].store(true);
  };
  std::vector<std::thread> cancellers;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    cancellers.emplace_back([&, rank] {
      std::mt19937_64 random(seed * 16 + rank);
      while (!over.load()) {
        usleep(static_cast<useconds_t>(random() % 6000));
        give_up(rank, newest.load() + random() % 4);
      }
    });
  }
  const std::size_t failed = group.each([&](std::size_t rank) {
    std::mt19937_64 random(seed * 16 + 8 + rank);
    for (std::uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      if (random() % 16 == 0) give_up(rank, epoch);
      if (skipping && fates.granted[epoch].load() && random() % 2 == 0) continue;
      std::uint64_t seen = newest.load();
      while (seen < epoch && !newest.compare_exchange_weak(seen, epoch)) {
      }
      try {
        group.load(rank, epoch, static_cast<std::int64_t>(epoch), *writer);
        group.check(rank, static_cast<std::int64_t>(epoch));
        CHECK(!fates.granted[epoch].load());
        fates.note(epoch, Fates::kDone);
      } catch (const Error& error) {
        if (error.code != Code::kCancelled) {
          std::fprintf(stderr, "seed %lu, rank %zu, epoch %lu: %s\n", seed, rank, epoch, error.what());
          throw;
        }
        CHECK(error.epoch == epoch);
        fates.note(epoch, Fates::kCancelled);
      }
    }
  });
  over.store(true);
  for (std::thread& thread : cancellers) thread.join();
  CHECK(failed == 0);
  std::uint64_t done = 0, cancelled = 0;
  for (const auto& outcome : fates.outcome) {
    done += outcome.load() == Fates::kDone;
    cancelled += outcome.load() == Fates::kCancelled;
  }
  for (std::uint64_t epoch = 8; epoch < kEpochs; epoch += 8)
    CHECK(fates.outcome[epoch].load() == Fates::kDone);
  if (std::getenv("LAYERCAST_RACE_ROUNDS") != nullptr) {
    std::printf("seed %lu: %lu done, %lu given up\n", seed, done, cancelled);
  }
  CHECK(done > 5 && cancelled > 5);
}

}  // namespace

void test_races() {
  const char* wish = std::getenv("LAYERCAST_RACE_ROUNDS");  // more of them, by hand
  const std::uint64_t rounds = wish == nullptr ? 12 : std::strtoull(wish, nullptr, 10);
  arm_pauses(3);
  for (std::uint64_t seed = 0; seed < rounds; ++seed) round(seed, seed % 4 != 0);
  for (std::uint64_t seed = 0; seed < 8 * rounds; ++seed) round_of_failure(seed);
  arm_pauses(0);
}
