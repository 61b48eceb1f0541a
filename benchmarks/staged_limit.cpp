// What two cores can stage at most, without protocol, processes or formats: the limit that `layercast bench
// staged` is held against. One thread fills slots from memory (memcpy), another empties them into memory past
// the caches; each alone, then both at once, handing pieces over by a counter that they spin on. Beside it
// two-thread memcpy. In turns; medians count.
//
//   c++ -O2 -mavx2 -std=c++20 -pthread -o staged_limit benchmarks/staged_limit.cpp && ./staged_limit
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "pages.h"

namespace {

constexpr std::size_t kBytes = 512u << 20, kPiece = 512u << 10, kChunk = 8u << 20, kTurns = 11;

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void stream(char* to, const char* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(from + at)));
  _mm_sfence();
}

struct Stage {
  std::size_t slots;
  char *source, *target;
  char* slot = huge_pages(slots * kPiece);
  std::atomic<std::size_t> filled{0}, emptied{0};

  // `alone`: nobody is on the other side.
  void fill(bool alone) {
    for (std::size_t piece = 0; piece < kBytes / kPiece; ++piece) {
      while (!alone && piece >= emptied.load(std::memory_order_acquire) + slots) _mm_pause();
      std::memcpy(slot + piece % slots * kPiece, source + piece * kPiece, kPiece);
      filled.store(piece + 1, std::memory_order_release);
    }
  }
  void empty(bool alone) {
    for (std::size_t piece = 0; piece < kBytes / kPiece; ++piece) {
      while (!alone && piece >= filled.load(std::memory_order_acquire)) _mm_pause();
      stream(target + piece * kPiece, slot + piece % slots * kPiece, kPiece);
      emptied.store(piece + 1, std::memory_order_release);
    }
  }
};

template <class One, class Other>
double both(One&& one, Other&& other) {
  const double start = seconds();
  std::thread thread(other);
  one();
  thread.join();
  return seconds() - start;
}

}  // namespace

int main() {
  char *source = huge_pages(kBytes), *target = huge_pages(kBytes), *second = huge_pages(kBytes),
       *third = huge_pages(kBytes);
  for (const std::size_t slots : {4u, 8u, 16u}) {  // all ranks' together: tp 1, 2, 4
    Stage stage{slots, source, target};
    std::vector<double> fill, empty, staged, copies;
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      const double gb = kBytes / 1e9;
      const double start = seconds();
      stage.fill(true);
      const double middle = seconds();
      stage.empty(true);
      fill.push_back(gb / (middle - start));
      empty.push_back(gb / (seconds() - middle));
      stage.filled = stage.emptied = 0;
      staged.push_back(gb / both([&] { stage.fill(false); }, [&] { stage.empty(false); }));
      const auto copy = [](char* to, const char* from) {
        for (std::size_t at = 0; at < kBytes; at += kChunk) std::memcpy(to + at, from + at, kChunk);
      };
      copies.push_back(2 * gb /
                       both([&] { copy(stage.target, stage.source); }, [&] { copy(second, third); }));
    }
    for (auto* values : {&fill, &empty, &staged, &copies}) std::sort(values->begin(), values->end());
    const double w = fill[kTurns / 2], c = empty[kTurns / 2], s = staged[kTurns / 2], m = copies[kTurns / 2];
    std::printf(
        "%2zu slots: fill %.1f, empty %.1f, both at once %.1f GB/s; memcpy x 2 %.1f; of it: both %.2f, "
        "two cores that share all work 2 / (1 / fill + 1 / empty) %.2f\n",
        slots, w, c, s, m, s / m, 2 / (1 / w + 1 / c) / m);
  }
}
