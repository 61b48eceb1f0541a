// CLOCK_MONOTONIC in nanoseconds, and arithmetic that saturates: "no limit" is the largest value.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace layercast {

inline constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::uint64_t kMillisecond = 1'000'000;

inline std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

inline std::uint64_t add_saturated(std::uint64_t a, std::uint64_t b) {
  return a > kNever - b ? kNever : a + b;
}

inline std::uint64_t milliseconds(std::uint64_t ms) {
  return ms > kNever / kMillisecond ? kNever : ms * kMillisecond;
}

}  // namespace layercast
