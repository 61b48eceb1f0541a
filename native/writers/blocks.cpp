#include <algorithm>
#include <string>

#include "error.h"
#include "layout.h"
#include "writers/block.h"
#include "writers/writers.h"

namespace layercast {

namespace {

class BlockWriter final : public Writer {
 public:
  BlockWriter(std::vector<Block> blocks, std::vector<std::uint64_t> index, std::size_t experts,
              std::size_t ranks, std::size_t kinds, std::int64_t layer)
      : blocks_(std::move(blocks)),
        index_(std::move(index)),
        experts_(experts),
        ranks_(ranks),
        kinds_(kinds),
        layer_(layer) {
    starts_.reserve(blocks_.size());
    for (std::size_t share = 0; share + 1 < index_.size(); ++share) {
      std::uint64_t at = 0;
      for (std::uint64_t b = index_[share]; b < index_[share + 1]; at += blocks_[b++].bytes())
        starts_.push_back(at);
    }
  }

  bool whole_experts() const override { return false; }
  bool parallel() const override { return true; }

  void check(std::int64_t layer, std::size_t experts, std::size_t ranks,
             std::span<const std::size_t> kind_bytes) override {
    if (layer != layer_ || experts > experts_ || ranks != ranks_ || kind_bytes.size() != kinds_) {
      refuse(Code::kArgument, "checkpoint writer: made for layer " + std::to_string(layer_) + ", " +
                                  std::to_string(experts_) + " experts, " + std::to_string(ranks_) +
                                  " ranks, " + std::to_string(kinds_) + " kinds; asked for layer " +
                                  std::to_string(layer) + ", " + std::to_string(experts) + " experts, " +
                                  std::to_string(ranks) + " ranks, " + std::to_string(kind_bytes.size()) +
                                  " kinds");
    }
    for (std::size_t i = 0; i + 1 < index_.size(); ++i) {
      std::uint64_t bytes = 0;
      for (std::uint64_t b = index_[i]; b < index_[i + 1]; ++b) bytes += blocks_[b].bytes();
      if (bytes == kind_bytes[i % kinds_] || bytes == 0) continue;  // 0: another rank's expert
      refuse(Code::kArgument, "checkpoint writer: kind " + std::to_string(i % kinds_) + " of expert " +
                                  std::to_string(i / kinds_ / ranks_) + " has " + std::to_string(bytes) +
                                  " bytes in the checkpoint, the transport expects " +
                                  std::to_string(kind_bytes[i % kinds_]));
    }
  }

  bool owns(std::size_t rank, std::size_t expert) const override {
    const std::size_t share = (expert * ranks_ + rank) * kinds_;
    return index_[share] != index_[share + 1];
  }

  void fill(const Piece& piece, const SlotView& slot) override {
    for (const Run& run : piece.runs) {
      if (interleaved(run)) {
        copy_interleaved(run, slot);
      } else {
        for (std::size_t r = 0; r < ranks_; ++r) copy_share(run, slot, r, copy_block);
      }
    }
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) copy_share(run, slot, rank, copy_block_out);
  }

 private:
  std::size_t share_of(const Run& run, std::size_t rank) const {
    return (run.expert * ranks_ + rank) * kinds_ + run.kind;
  }

  using CopyBlock = void(const Block&, std::uint64_t, std::size_t, std::byte*, Ahead);

  void copy_share(const Run& run, const SlotView& slot, std::size_t rank, CopyBlock copy_one) const {
    if (owns(rank, run.expert))
      copy(share_of(run, rank), run.offset, run.bytes, slot.address(rank, run), copy_one);
  }

  // Columns of one matrix, side by side: each rank's share is one block of as many and as long rows.
  bool interleaved(const Run& run) const {
    if (ranks_ == 1 || !owns(0, run.expert)) return false;
    const Block& first = blocks_[index_[share_of(run, 0)]];
    if (first.rows == 1 || first.count != 1) return false;
    for (std::size_t r = 0; r < ranks_; ++r) {
      const std::size_t share = share_of(run, r);
      if (index_[share + 1] - index_[share] != 1) return false;
      const Block& b = blocks_[index_[share]];
      if (b.rows != first.rows || b.row_bytes != first.row_bytes || b.stride != first.stride ||
          b.count != 1 || b.source != first.source + r * first.row_bytes)
        return false;
    }
    return true;
  }

  // A row of each rank, then the next rows: memory is read as it lies, not with gaps of the other ranks'
  // columns. Several rows of one rank before the next rank's are half as fast: the processor's own reading
  // ahead then sees jumps. Rows of a few bytes are copied in groups, where the loop is what costs.
  void copy_interleaved(const Run& run, const SlotView& slot) const {
    const Block& block = blocks_[index_[share_of(run, 0)]];
    const std::size_t width = block.row_bytes;
    const std::size_t few = width >= kWide ? 1 : std::max<std::size_t>(kAhead / block.stride, 1);
    std::vector<std::byte*> to;
    for (std::size_t r = 0; r < ranks_; ++r) to.push_back(slot.address(r, run));
    const std::size_t in_row = run.offset % width;
    const std::byte* from = block.row(run.offset / width) + in_row;
    const auto copy_each = [&](std::size_t at, std::size_t bytes) {
      for (std::size_t r = 0; r < ranks_; ++r) copy_row(to[r] + at, from + r * width, bytes);
    };
    std::size_t at = 0;
    if (in_row != 0) {
      copy_each(0, at = std::min(width - in_row, run.bytes));
      from += block.stride - in_row;
    }
    for (; run.bytes - at >= few * width; at += few * width, from += few * block.stride) {
      prefetch(from, kAhead, few * block.stride);
      if (few == 1) {
        copy_each(at, width);
        continue;
      }
      for (std::size_t r = 0; r < ranks_; ++r)
        copy_block(blocks_[index_[share_of(run, r)]], run.offset + at, few * width, to[r] + at,
                   Ahead::kNothing);
    }
    for (std::size_t bytes; at < run.bytes; at += bytes, from += block.stride)
      copy_each(at, bytes = std::min(width, run.bytes - at));
  }
  static constexpr std::size_t kWide = 64;

  // [offset, offset + bytes) of the blocks of a share, one after the other.
  void copy(std::size_t share, std::uint64_t offset, std::size_t bytes, std::byte* to,
            CopyBlock copy_one) const {
    const std::uint64_t first = index_[share], end = index_[share + 1];
    const auto begin = starts_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto above = std::upper_bound(begin, begin + static_cast<std::ptrdiff_t>(end - first), offset);
    std::uint64_t block = static_cast<std::uint64_t>(above - starts_.begin()) - 1;
    for (offset -= starts_[block]; bytes > 0; ++block, offset = 0) {
      const Block& b = blocks_[block];
      const std::size_t length = std::min<std::uint64_t>(b.bytes() - offset, bytes);
      const Ahead ahead = block + 1 < end && alternate(b, blocks_[block + 1]) ? Ahead::kGaps : Ahead::kRows;
      if (ahead == Ahead::kGaps && bytes > length) {
        const std::size_t more = std::min<std::uint64_t>(b.bytes(), bytes - length);
        copy_pair(b, offset, blocks_[++block], more, to, copy_one);
        to += length + more, bytes -= length + more;
        continue;
      }
      copy_one(b, offset, length, to, ahead);
      to += length, bytes -= length;
    }
  }

  // `first` from `offset` on, then `bytes` of `second`, in turns: what lies together is read together.
  static void copy_pair(const Block& first, std::uint64_t offset, const Block& second, std::uint64_t bytes,
                        std::byte* to, CopyBlock copy_one) {
    // rows of the result
    const std::uint64_t row = is_turned(first) ? first.rows * first.row_bytes : first.row_bytes;
    const std::uint64_t few =
        is_turned(first) ? kTileColumns * row : std::max(kStage / row, std::uint64_t{1}) * row;
    std::byte* const there = to + (first.bytes() - offset);
    copy_one(second, 0, std::min(offset, bytes), there, Ahead::kRows);
    for (std::uint64_t at = offset; at < first.bytes(); at += few) {
      const std::uint64_t length = std::min(few, first.bytes() - at);
      copy_one(first, at, length, to + (at - offset), Ahead::kGaps);
      if (at < bytes) copy_one(second, at, std::min(length, bytes - at), there + at, Ahead::kNothing);
    }
  }

  // Rows or columns that take turns (gate and up of gpt-oss): those of the second lie in the first one's
  // gaps.
  static bool alternate(const Block& first, const Block& second) {
    if (second.rows != first.rows || second.stride != first.stride || second.row_bytes != first.row_bytes ||
        second.step != first.step || second.count != first.count)
      return false;
    const std::uint64_t every = first.count > 1 ? first.step : first.stride;
    return every == 2 * first.row_bytes && second.source == first.source + first.row_bytes;
  }

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> index_;
  std::vector<std::uint64_t> starts_;  // per block: the bytes of its share that lie before it
  std::size_t experts_, ranks_, kinds_;
  std::int64_t layer_;
};

}  // namespace

std::unique_ptr<Writer> make_block_writer(std::vector<Block> blocks, std::vector<std::uint64_t> index,
                                          std::size_t experts, std::size_t ranks, std::size_t kinds,
                                          std::int64_t layer) {
  if (index.size() != experts * ranks * kinds + 1 || index.front() != 0 || index.back() != blocks.size() ||
      !std::is_sorted(index.begin(), index.end())) {
    refuse(Code::kArgument, "checkpoint writer: its index does not cover " + std::to_string(experts) +
                                " experts x " + std::to_string(ranks) + " ranks x " + std::to_string(kinds) +
                                " kinds");
  }
  for (const Block& block : blocks) {
    if (block.source == nullptr || block.rows == 0 || block.row_bytes == 0 || block.count == 0) {
      refuse(Code::kArgument, "checkpoint writer: a block has no bytes");
    }
  }
  return std::make_unique<BlockWriter>(std::move(blocks), std::move(index), experts, ranks, kinds, layer);
}

}  // namespace layercast
