// Loads and stores of shared 64-bit counters. Every release/acquire pair bears one name at both ends.
#pragma once

#include <atomic>
#include <cstdint>

namespace layercast {

inline std::uint64_t load_acquire(const std::uint64_t& cell) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(cell)).load(std::memory_order_acquire);
}

inline std::uint64_t load_relaxed(const std::uint64_t& cell) {
  return std::atomic_ref<std::uint64_t>(const_cast<std::uint64_t&>(cell)).load(std::memory_order_relaxed);
}

inline void store_release(std::uint64_t& cell, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(cell).store(value, std::memory_order_release);
}

inline void store_relaxed(std::uint64_t& cell, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(cell).store(value, std::memory_order_relaxed);
}

}  // namespace layercast
