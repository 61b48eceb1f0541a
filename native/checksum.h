// Finds bytes that arrived wrong; no defence against somebody who wants to deceive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layercast {

// 64 bits over the bytes and their number, at the speed of memory.
std::uint64_t checksum(const std::byte* bytes, std::size_t size);

// Of a piece: its stretches' checksums in their order.
class PieceChecksum {
 public:
  void add(const std::byte* bytes, std::size_t size) { value_ = (value_ ^ checksum(bytes, size)) * kPrime; }
  std::uint64_t value() const { return value_; }

 private:
  static constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15;
  std::uint64_t value_ = kPrime;
};

}  // namespace layercast
