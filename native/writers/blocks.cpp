#include <algorithm>
#include <cstring>
#include <string>

#include "error.h"
#include "writers/writers.h"

namespace layercast {

namespace {

std::uint64_t bytes_of(const Block& block) { return block.rows * block.row_bytes; }

class BlockWriter final : public Writer {
 public:
  BlockWriter(std::vector<Block> blocks, std::vector<std::uint64_t> index, std::size_t experts,
              std::size_t ranks, std::size_t kinds, std::int64_t layer)
      : blocks_(std::move(blocks)),
        index_(std::move(index)),
        experts_(experts),
        ranks_(ranks),
        kinds_(kinds),
        layer_(layer) {}

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
      for (std::uint64_t b = index_[i]; b < index_[i + 1]; ++b) bytes += bytes_of(blocks_[b]);
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
    for (std::size_t r = 0; r < piece.ranks; ++r) fill_share(piece, slot, r);
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) {
      if (!owns(rank, run.expert)) continue;
      const std::size_t share = (run.expert * ranks_ + rank) * kinds_ + run.kind;
      copy(index_[share], run.offset, run.bytes, slot.address(rank, run));
    }
  }

 private:
  // [offset, offset + bytes) of the blocks from `block` on, one after the other.
  void copy(std::uint64_t block, std::size_t offset, std::size_t bytes, std::byte* to) const {
    while (offset >= bytes_of(blocks_[block])) offset -= bytes_of(blocks_[block++]);
    for (; bytes > 0; ++block, offset = 0) {
      const Block& b = blocks_[block];
      std::uint64_t row = offset / b.row_bytes, in_row = offset % b.row_bytes;
      for (; row < b.rows && bytes > 0; ++row, in_row = 0) {
        const std::size_t length = std::min<std::size_t>(b.row_bytes - in_row, bytes);
        std::memcpy(to, b.source + row * b.stride + in_row, length);
        to += length;
        bytes -= length;
      }
    }
  }

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> index_;
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
    if (block.source == nullptr || block.rows == 0 || block.row_bytes == 0) {
      refuse(Code::kArgument, "checkpoint writer: a block has no bytes");
    }
  }
  return std::make_unique<BlockWriter>(std::move(blocks), std::move(index), experts, ranks, kinds, layer);
}

}  // namespace layercast
