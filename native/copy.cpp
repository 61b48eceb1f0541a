#include "copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace layercast {

namespace {

// Below this the fence and the loop's edges cost more than they save.
constexpr std::size_t kWorthStreaming = 16 << 10;

#if defined(__x86_64__)

__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kVector = 32, kStep = 4 * kVector;
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kVector;
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  for (; bytes >= kStep; to += kStep, from += kStep, bytes -= kStep) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* target = reinterpret_cast<__m256i*>(to);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  std::memcpy(to, from, bytes);
  _mm_sfence();  // streamed stores are weakly ordered: they must not pass the acknowledgement
}

bool can_stream() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

#else

void stream(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
bool can_stream() { return false; }

#endif

}  // namespace

void copy_out(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes >= kWorthStreaming && can_stream()) {
    stream(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace layercast
