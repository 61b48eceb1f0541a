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
        for (std::size_t r = 0; r < ranks_; ++r) copy_share(run, slot, r);
      }
    }
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) copy_share(run, slot, rank);
  }

 private:
  std::size_t share_of(const Run& run, std::size_t rank) const {
    return (run.expert * ranks_ + rank) * kinds_ + run.kind;
  }

  void copy_share(const Run& run, const SlotView& slot, std::size_t rank) const {
    if (owns(rank, run.expert)) copy(share_of(run, rank), run.offset, run.bytes, slot.address(rank, run));
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

  // Row by row for all ranks: memory is read as it lies, not with a gap of the other ranks' columns.
  void copy_interleaved(const Run& run, const SlotView& slot) const {
    const Block& block = blocks_[index_[share_of(run, 0)]];
    std::byte* to[kMaxRanks];
    for (std::size_t r = 0; r < ranks_; ++r) to[r] = slot.address(r, run);
    std::uint64_t row = run.offset / block.row_bytes, in_row = run.offset % block.row_bytes;
    const std::byte* from = block.row(row);
    for (std::size_t at = 0; at < run.bytes; from += block.stride, in_row = 0) {
      const std::size_t length = std::min<std::size_t>(block.row_bytes - in_row, run.bytes - at);
      prefetch(from + kAhead, ranks_ * block.row_bytes);
      for (std::size_t r = 0; r < ranks_; ++r)
        copy_row(to[r] + at, from + r * block.row_bytes + in_row, length);
      at += length;
    }
  }

  // [offset, offset + bytes) of the blocks of a share, one after the other.
  void copy(std::size_t share, std::uint64_t offset, std::size_t bytes, std::byte* to) const {
    const std::uint64_t first = index_[share], end = index_[share + 1];
    // starts_ of blocks count from the share's first
    const auto above = std::upper_bound(starts_.begin() + first, starts_.begin() + end, offset);
    std::uint64_t block = static_cast<std::uint64_t>(above - starts_.begin()) - 1;
    for (offset -= starts_[block]; bytes > 0; ++block, offset = 0) {
      const Block& b = blocks_[block];
      const std::size_t length = std::min<std::uint64_t>(b.bytes() - offset, bytes);
      copy_block(b, offset, length, to, block + 1 < end && fills_gaps(b, blocks_[block + 1]));
      to += length, bytes -= length;
    }
  }

  // Rows that take turns (gate and up of gpt-oss): those of the second lie in the first one's gaps.
  static bool fills_gaps(const Block& first, const Block& second) {
    return first.stride == 2 * first.row_bytes && second.source == first.source + first.row_bytes &&
           second.stride == first.stride && second.rows == first.rows;
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
