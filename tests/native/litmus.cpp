// The two claims that every wait rests on, tried many times. Under TSan the first is also a race check.
#include <atomic>
#include <thread>

#include "check.h"
#include "control.h"
#include "doorbell.h"

using namespace layercast;

namespace {

// "ready": payload, then the announcing store. Forbidden: the sequence is seen, the payload is not.
void message_passing() {
  constexpr int kRounds = 20'000;
  std::uint64_t payload = 0, sequence = 0, acknowledged = 0;
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      while (load_acquire(acknowledged) != i - 1) std::this_thread::yield();
      payload = i * 7;
      store_release(sequence, i);
    }
  });
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    while (load_acquire(sequence) != i) std::this_thread::yield();
    CHECK(payload == i * 7);
    store_release(acknowledged, i);
  }
  writer.join();
}

// "doorbell": forbidden that both sleep although each has written what the other waits for.
void ping_pong(bool spin) {
  constexpr std::uint64_t kRounds = 3'000;
  DoorbellCell cells[2]{};
  std::uint64_t turns[2] = {0, 0};
  const auto play = [&](int me) {
    Waiter waiter;
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      if (me == 1) {
        waiter.wait(Doorbell(&cells[1]), kNever, [&] { return load_acquire(turns[0]) >= i; }, spin);
      }
      store_release(turns[me], i);
      Doorbell(&cells[1 - me]).ring();
      if (me == 0) {
        waiter.wait(Doorbell(&cells[0]), kNever, [&] { return load_acquire(turns[1]) >= i; }, spin);
      }
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  CHECK(cells[0].sleepers == 0 && cells[1].sleepers == 0);
}

// "last ack": two ranks acknowledge at once and each looks whether it was the last. Forbidden: both think
// that the other comes later, so nobody rings.
void last_acknowledgement() {
  constexpr std::uint64_t kRounds = 20'000;
  std::uint64_t acks[2] = {0, 0}, looked = 0, round = 0;
  bool rang[2] = {false, false};
  const auto acknowledge = [&](int me, std::uint64_t i) {
    store_release(acks[me], i);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    rang[me] = load_relaxed(acks[1 - me]) >= i;
  };
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      while (load_acquire(round) != i) std::this_thread::yield();
      acknowledge(1, i);
      store_release(looked, i);
    }
  });
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    store_release(round, i);
    acknowledge(0, i);
    while (load_acquire(looked) != i) std::this_thread::yield();
    CHECK(rang[0] || rang[1]);
  }
  other.join();
}

// "verdict": done and given up race; exactly one of them wins, and all see the same.
void verdict() {
  constexpr std::uint64_t kRounds = 20'000;
  alignas(64) static std::byte region[1 << 16];
  ControlBlock::initialize(region, sizeof region, 2, kVersionPieces, 2, 2);
  const ControlBlock control(region, sizeof region, 2);
  std::uint64_t go = 0, finished = 0;
  std::uint64_t cancelled = 0;
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      while (load_acquire(go) != i) std::this_thread::yield();
      if (control.cancel_layer(i, 1)) ++cancelled;
      store_release(finished, i);
    }
  });
  std::uint64_t done = 0;
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    control.open_layer(i);
    store_release(go, i);
    const bool closed = control.close_layer(i);
    while (load_acquire(finished) != i) std::this_thread::yield();
    CHECK(closed != control.cancelled(i));
    done += closed;
  }
  other.join();
  CHECK(done + cancelled == kRounds);
}

// "cancel wish": rank 0 publishes a layer while another rank gives it up. Forbidden: neither sees the other.
void cancel_wish() {
  constexpr std::uint64_t kRounds = 20'000;
  std::uint64_t wish = 0, active = 0, round = 0, seen_by_other = 0, finished = 0;
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      while (load_acquire(round) != i) std::this_thread::yield();
      store_relaxed(wish, i);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      seen_by_other = load_acquire(active) >= i;
      store_release(finished, i);
    }
  });
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    store_release(round, i);
    store_release(active, i);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool seen = load_relaxed(wish) == i;
    while (load_acquire(finished) != i) std::this_thread::yield();
    CHECK(seen || seen_by_other != 0);
  }
  other.join();
}

// "identity", "epoch", "poison", "peer identity", "consumer done": as "ready", one store after what it
// announces. This one has the shape of the poison: claimed by one of two, read by a third.
void poison() {
  constexpr std::uint64_t kRounds = 300;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    alignas(64) static std::byte region[1 << 16];
    ControlBlock::initialize(region, sizeof region, 2, kVersionPieces, 2, 2);
    const ControlBlock control(region, sizeof region, 2);
    int won[2] = {0, 0};
    const auto fail = [&](int me) {
      Error error(Code::kWriter, std::string(100, static_cast<char>('a' + me)));
      error.rank = me;
      won[me] = control.poison(error);
    };
    std::thread a(fail, 0), b(fail, 1);
    while (!control.poisoned()) std::this_thread::yield();
    const auto error = control.failure();
    CHECK(error.has_value());
    CHECK(error->message == std::string(100, static_cast<char>('a' + error->rank)));
    a.join();
    b.join();
    CHECK(won[0] + won[1] == 1);
    CHECK(won[error->rank] == 1);
  }
}

void deadline() {
  DoorbellCell cell{};
  Waiter waiter;
  const std::uint64_t start = now_ns();
  const auto outcome = waiter.wait(Doorbell(&cell), start + 20 * kMillisecond, [] { return false; });
  CHECK(outcome == Waiter::Outcome::kDeadline);
  CHECK(now_ns() - start >= 20 * kMillisecond);
}

}  // namespace

void test_litmus() {
  message_passing();
  ping_pong(true);
  ping_pong(false);
  last_acknowledgement();
  verdict();
  cancel_wish();
  poison();
  deadline();
}
