// What the sanitizers look at.
#include "group.h"

using namespace layercast;

void test_groups() {
  const Shape shapes[] = {
      {1, {64, 8}, 5, 3, 2, 48, false},         {2, {4097, 1, 33}, 9, 3, 4, 1000, false},
      {4, {100}, 17, 3, 3, 512, false},         {2, {4097, 1, 33}, 9, 2, 2, 0, false},
      {8, {16, 16, 16, 16}, 6, 2, 2, 0, false}, {2, {4097, 1, 33}, 9, 3, 4, 1000, true},
      {3, {64, 64}, 8, 2, 2, 0, true},          {2, {4097, 1, 33}, 9, 3, 4, 1000, false, true},
      {3, {64, 64}, 8, 2, 2, 0, false, true},
  };
  for (const Shape& shape : shapes) {
    Group group(shape);
    const auto writer = make_pattern_writer(kSeed);
    const std::size_t failed = group.each([&](std::size_t rank) {
      for (std::uint64_t epoch = 1; epoch <= 60; ++epoch) {
        group.load(rank, epoch, static_cast<std::int64_t>(epoch % 7), *writer);
        group.check(rank, static_cast<std::int64_t>(epoch % 7));
      }
    });
    CHECK(failed == 0);
  }
}

// A rank closes or a writer fails in mid-layer, at random moments: everybody raises, nothing hangs, nothing
// races.
void test_failures() {
  for (std::size_t round = 0; round < 24; ++round) {
    Group group({3, {5000, 40}, 40, 3, 2, 700, round % 3 == 1, round % 3 == 2});
    const auto writer = make_pattern_writer(kSeed);
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      group[round % 3].close();
    });
    const std::size_t failed = group.each([&](std::size_t rank) {
      for (std::uint64_t epoch = 1; epoch <= 100'000; ++epoch) group.load(rank, epoch, 1, *writer);
    });
    closer.join();
    CHECK(failed == 3);
  }
}
