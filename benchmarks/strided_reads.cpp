// What memory itself gives to reads with gaps, without writer, format or page cache: the limit that the
// strided rows of formats.py are held against. Each pattern copies the same bytes into 2 MB that the caches
// hold, a plain loop of 32 bytes a step with the next 4 KiB that are wanted asked for ahead, in huge pages
// (as files of new kernels lie), in turns with a contiguous read; the median of ratios counts.
//
//   c++ -O2 -std=c++20 -o strided_reads benchmarks/strided_reads.cpp && ./strided_reads
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "pages.h"

namespace {

constexpr std::size_t kSource = 192u << 20, kTarget = 2u << 20, kSpare = 1u << 20, kAhead = 4096, kTurns = 15;

double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Panels of `rows` rows `stride` apart; `width` bytes of each row, then the next `width` of each, and so on.
double copy(const char* from, char* to, std::size_t rows, std::size_t stride, std::size_t width) {
  const double start = seconds();
  std::size_t out = 0;
  for (std::size_t panel = 0; panel + rows * stride <= kSource; panel += rows * stride) {
    for (std::size_t column = 0; column < stride; column += width) {
      for (std::size_t row = 0; row < rows; ++row) {
        const char* at = from + panel + row * stride + column;
        const std::size_t ahead = std::max<std::size_t>(kAhead / width, 1) * stride;
        for (std::size_t byte = 0; byte < width; byte += 64) __builtin_prefetch(at + ahead + byte);
        for (std::size_t byte = 0; byte < width; byte += 32) std::memcpy(to + out + byte, at + byte, 32);
        out = (out + width) % kTarget;
      }
    }
  }
  return seconds() - start;
}

}  // namespace

int main() {
  char *from = huge_pages(kSource + kSpare), *to = huge_pages(kTarget + kSpare);
  struct Pattern {
    const char* name;
    std::size_t rows, stride, width;
  };
  for (const Pattern& p : {Pattern{"128 bytes of 512 (w2, mxfp4, T 4, one rank)", 2048, 512, 128},
                           Pattern{"256 bytes of 1024 (w2, fp8, T 4, one rank)", 2048, 1024, 256},
                           Pattern{"every second row of 1024 (w13, gpt-oss mxfp4)", 2048, 2048, 1024},
                           Pattern{"128 bytes of 4096 (w13 on its side, a piece, T 4)", 2048, 4096, 128},
                           Pattern{"256 bytes of 4096 (w13 on its side, a piece)", 2048, 4096, 256},
                           Pattern{"1024 bytes of 4096 (w13 on its side, an arena)", 2048, 4096, 1024}}) {
    std::vector<double> ratios;
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
      const double strided = copy(from, to, p.rows, p.stride, p.width);
      ratios.push_back(copy(from, to, p.rows, p.stride, p.stride) / strided);
    }
    std::sort(ratios.begin(), ratios.end());
    std::printf("%-50s %.2f of a contiguous read (quartiles %.2f to %.2f)\n", p.name, ratios[kTurns / 2],
                ratios[kTurns / 4], ratios[kTurns * 3 / 4]);
  }
}
