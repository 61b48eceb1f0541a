#include "writers/block.h"

namespace layercast {

namespace {

// Whole rows of a width known at compile time.
template <std::size_t kBytes>
void copy_narrow(const std::byte* from, std::uint64_t stride, std::uint64_t rows, std::byte* to) {
  for (std::uint64_t row = 0; row < rows; ++row, from += stride, to += kBytes) std::memcpy(to, from, kBytes);
}

void copy_wide(const std::byte* from, std::uint64_t stride, std::uint64_t rows, std::size_t bytes, bool gaps,
               std::byte* to) {
  const std::uint64_t ahead = stride == 0 ? 0 : std::max<std::uint64_t>(kAhead / stride, 1);
  const std::size_t wanted = gaps ? stride : bytes;
  for (std::uint64_t row = 0; row < rows; ++row, from += stride, to += bytes) {
    if (row + ahead < rows) prefetch(from + ahead * stride, wanted);
    copy_row(to, from, bytes);
  }
}

// Whole rows, of one repetition.
void copy_rows(const std::byte* from, const Block& block, std::uint64_t rows, bool gaps, std::byte* to) {
  switch (block.row_bytes) {
    case 1:
      return copy_narrow<1>(from, block.stride, rows, to);
    case 2:
      return copy_narrow<2>(from, block.stride, rows, to);
    case 4:
      return copy_narrow<4>(from, block.stride, rows, to);
    case 8:
      return copy_narrow<8>(from, block.stride, rows, to);
    case 16:
      return copy_narrow<16>(from, block.stride, rows, to);
    default:
      return copy_wide(from, block.stride, rows, block.row_bytes, gaps, to);
  }
}

}  // namespace

void copy_block(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to, bool gaps) {
  if (is_turned(block)) {
    copy_turned(block, offset, bytes, to);
    return;
  }
  std::uint64_t row = offset / block.row_bytes;
  if (const std::uint64_t in_row = offset % block.row_bytes; in_row != 0) {
    const std::size_t length = std::min<std::size_t>(block.row_bytes - in_row, bytes);
    std::memcpy(to, block.row(row) + in_row, length);
    to += length, bytes -= length, ++row;
  }
  while (bytes >= block.row_bytes) {
    const std::uint64_t rows = std::min(block.rows - row % block.rows, bytes / block.row_bytes);
    copy_rows(block.row(row), block, rows, gaps, to);
    to += rows * block.row_bytes, bytes -= rows * block.row_bytes, row += rows;
  }
  if (bytes != 0) std::memcpy(to, block.row(row), bytes);
}

}  // namespace layercast
