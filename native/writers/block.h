// Strided blocks of mapped files, and copies of any range of their bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace layercast {

// `count` times `rows` rows of `row_bytes`: rows `stride` apart, the repetitions `step`. A matrix that lies
// on its side has rows of one element.
struct Block {
  const std::byte* source;
  std::uint64_t stride;
  std::uint64_t row_bytes;
  std::uint64_t rows;
  std::uint64_t step;
  std::uint64_t count;

  std::uint64_t bytes() const { return count * rows * row_bytes; }
  const std::byte* row(std::uint64_t number) const {
    return source + number / rows * step + number % rows * stride;
  }
};
static_assert(sizeof(Block) == 48, "the Python side lays these out");

// Source bytes that are asked for ahead of the copy: rows with gaps between them end the processor's own
// guesses, at the latest where a page ends.
constexpr std::size_t kAhead = 4096;

inline void prefetch(const std::byte* from, std::uint64_t distance, std::size_t bytes) {
  const std::uintptr_t first =
      reinterpret_cast<std::uintptr_t>(from) + distance;  // no pointer: it may be past the end
  for (std::uintptr_t line = first & ~std::uintptr_t{63}; line < first + bytes; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(line));
}

// As memcpy, without a call where the rows around this one are asked for ahead: it is faster up to a page.
inline void copy_row(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 4096) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (; bytes >= 32; to += 32, from += 32, bytes -= 32) std::memcpy(to, from, 32);
  if (bytes & 16) std::memcpy(to, from, 16), to += 16, from += 16;
  if (bytes & 8) std::memcpy(to, from, 8), to += 8, from += 8;
  if (bytes & 4) std::memcpy(to, from, 4), to += 4, from += 4;
  if (bytes & 2) std::memcpy(to, from, 2), to += 2, from += 2;
  if (bytes & 1) *to = *from;
}

// What a copy of rows asks for ahead: nothing, the next rows, or also what lies between them, which is read
// soon.
enum class Ahead { kNothing, kRows, kGaps };

// [offset, offset + bytes) of a block, which has them.
void copy_block(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to,
                Ahead ahead = Ahead::kRows);

// The same, stored past the caches: for memory that they cannot hold, see `copy_out`.
void copy_block_out(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to, Ahead ahead);
constexpr std::size_t kStage = 16 << 10;  // bytes that are gathered before they go out

// Matrices side by side: rows of `row_bytes` of each, then the rest of the stride; `first` is the leftmost
// one, with one repetition. [offset, offset + bytes) of each goes to its own address.
void copy_side_by_side(const Block& first, std::uint64_t offset, std::size_t bytes,
                       std::span<std::byte* const> to);

// Whether `copy_turned` knows this block: elements of one or two bytes, columns of a matrix.
bool is_turned(const Block& block);

// Columns of which one pass over the matrix makes good use.
constexpr std::uint64_t kTileColumns = 64;

// `copy_block` by tiles: reads whole cache lines, each once where it can, instead of an element of each.
void copy_turned(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to);

}  // namespace layercast
