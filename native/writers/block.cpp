#include "writers/block.h"

#include "copy.h"

namespace layercast {

namespace {

// Whole rows of a width known at compile time.
template <std::size_t kBytes>
void copy_narrow(const std::byte* from, std::uint64_t stride, std::uint64_t rows, std::byte* to) {
  for (std::uint64_t row = 0; row < rows; ++row, from += stride, to += kBytes) std::memcpy(to, from, kBytes);
}

void copy_wide(const std::byte* from, std::uint64_t stride, std::uint64_t rows, std::size_t bytes,
               Ahead ahead, std::byte* to) {
  // Past the last row too: there often is another piece's, and asking for what is not there does no harm.
  const std::uint64_t near = ahead == Ahead::kGaps ? 2 * kAhead : kAhead;
  const std::uint64_t distance = stride == 0 ? 0 : std::max<std::uint64_t>(near / stride, 1) * stride;
  const std::size_t wanted = ahead == Ahead::kGaps ? stride : bytes;
  for (std::uint64_t row = 0; row < rows; ++row, from += stride, to += bytes) {
    if (ahead != Ahead::kNothing) prefetch(from, distance, wanted);
    copy_row(to, from, bytes);
  }
}

// Whole rows, of one repetition.
void copy_rows(const std::byte* from, const Block& block, std::uint64_t rows, Ahead ahead, std::byte* to) {
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
      return copy_wide(from, block.stride, rows, block.row_bytes, ahead, to);
  }
}

}  // namespace

void copy_block(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to, Ahead ahead) {
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
    copy_rows(block.row(row), block, rows, ahead, to);
    to += rows * block.row_bytes, bytes -= rows * block.row_bytes, row += rows;
  }
  if (bytes != 0) std::memcpy(to, block.row(row), bytes);
}

// A row of each, then the next rows: memory is read as it lies, not with gaps. Several rows of one matrix
// before the next one's are half as fast: the processor's own reading ahead then sees jumps. Rows of a few
// bytes are copied in groups, where the loop is what costs.
void copy_side_by_side(const Block& first, std::uint64_t offset, std::size_t bytes,
                       std::span<std::byte* const> to) {
  constexpr std::size_t kWorthAlone = 64;
  const std::size_t width = first.row_bytes;
  const std::size_t few = width >= kWorthAlone ? 1 : std::max<std::size_t>(kAhead / first.stride, 1);
  const std::size_t in_row = offset % width;
  const std::byte* from = first.row(offset / width) + in_row;
  const auto copy_each = [&](std::size_t at, std::size_t length) {
    for (std::size_t i = 0; i < to.size(); ++i) copy_row(to[i] + at, from + i * width, length);
  };
  std::size_t at = 0;
  if (in_row != 0) {
    copy_each(0, at = std::min(width - in_row, bytes));
    from += first.stride - in_row;
  }
  for (; bytes - at >= few * width; at += few * width, from += few * first.stride) {
    prefetch(from, kAhead, few * first.stride);
    if (few == 1) {
      copy_each(at, width);
      continue;
    }
    for (std::size_t i = 0; i < to.size(); ++i)
      copy_rows(from + i * width, first, few, Ahead::kNothing, to[i] + at);
  }
  for (std::size_t length; at < bytes; at += length, from += first.stride)
    copy_each(at, length = std::min(width, bytes - at));
}

void copy_block_out(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to, Ahead ahead) {
  if (block.row_bytes >= kStage) {
    for (std::size_t length; bytes > 0; offset += length, to += length, bytes -= length) {
      const std::uint64_t in_row = offset % block.row_bytes;
      length = std::min<std::uint64_t>(block.row_bytes - in_row, bytes);
      copy_out(to, block.row(offset / block.row_bytes) + in_row, length);
    }
    return;
  }
  if (is_turned(block)) {
    copy_turned(block, offset, bytes, to);
    return;
  }
  alignas(64) std::byte stage[kStage];
  for (std::size_t length; bytes > 0; offset += length, to += length, bytes -= length) {
    length = std::min(kStage, bytes);
    copy_block(block, offset, length, stage, ahead);
    copy_out(to, stage, length);
  }
}

}  // namespace layercast
