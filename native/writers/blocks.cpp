#include <algorithm>
#include <array>
#include <string>

#include "copy.h"
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
      if (share % kinds_ < 64 && is_pair(share)) paired_ |= std::uint64_t{1} << share % kinds_;
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

  std::uint64_t paired() const override { return paired_; }

  void fill(const Piece& piece, const SlotView& slot) override {
    for (std::size_t i = 0; i < piece.runs.size(); ++i) {
      const Run& run = piece.runs[i];
      const Run* twin = i + 1 < piece.runs.size() && is_twin(run, piece.runs[i + 1]) ? &run + 1 : nullptr;
      if (interleaved(run)) {
        copy_interleaved(run, slot);
        continue;
      }
      for (std::size_t r = 0; r < ranks_; ++r) copy_share(run, twin, slot, r, kInCaches);
      if (twin != nullptr) ++i;
    }
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) copy_share(run, nullptr, slot, rank, kPastCaches);
  }

 private:
  std::size_t share_of(const Run& run, std::size_t rank) const {
    return (run.expert * ranks_ + rank) * kinds_ + run.kind;
  }

  // Where the copies are stored: slots are read again soon, arenas much later.
  enum Where { kInCaches, kPastCaches };

  static void copy_one(Where where, const Block& block, std::uint64_t offset, std::size_t bytes,
                       std::byte* to, Ahead ahead) {
    if (bytes == 0) return;
    if (where == kInCaches) {
      copy_block(block, offset, bytes, to, ahead);
    } else {
      copy_block_out(block, offset, bytes, to, ahead);
    }
  }

  // `twin`: the run behind it, which has the other half's bytes of a pair.
  void copy_share(const Run& run, const Run* twin, const SlotView& slot, std::size_t rank,
                  Where where) const {
    if (!owns(rank, run.expert)) return;
    const std::size_t share = share_of(run, rank);
    std::byte* const to = slot.address(rank, run);
    if (twin == nullptr || !is_pair(share)) {
      copy(share, run.offset, run.bytes, to, where);
      if (twin != nullptr) copy(share, twin->offset, twin->bytes, slot.address(rank, *twin), where);
      return;
    }
    const Block* blocks = &blocks_[index_[share]];
    copy_pair(blocks[0], run.offset, run.bytes, to, blocks[1], twin->offset - blocks[0].bytes(), twin->bytes,
              slot.address(rank, *twin), where);
  }

  // Whether a share is two halves whose rows take turns. Halves of columns are cut one after the other: a
  // piece of both would have half as many columns of each, and read shorter stretches of each row.
  bool is_pair(std::size_t share) const {
    const std::uint64_t first = index_[share];
    return index_[share + 1] - first == 2 && blocks_[first].count == 1 &&
           alternate(blocks_[first], blocks_[first + 1]);
  }

  // Whether `next` has bytes of the second half where `run` has some of the first.
  bool is_twin(const Run& run, const Run& next) const {
    if (next.expert != run.expert || next.kind != run.kind || !owns(0, run.expert)) return false;
    const std::size_t share = share_of(run, 0);
    const std::uint64_t half = blocks_[index_[share]].bytes();
    return is_pair(share) && run.offset + run.bytes <= half && next.offset >= half;
  }

  // Columns of one matrix, side by side: each rank's share is one block of as many and as long rows.
  bool interleaved(const Run& run) const {
    if (ranks_ == 1 || !owns(0, run.expert)) return false;
    const Block& first = blocks_[index_[share_of(run, 0)]];
    if (first.rows == 1 || first.count != 1 || first.stride < ranks_ * first.row_bytes) return false;
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

  void copy_interleaved(const Run& run, const SlotView& slot) const {
    std::array<std::byte*, kMaxRanks> to;
    for (std::size_t r = 0; r < ranks_; ++r) to[r] = slot.address(r, run);
    copy_side_by_side(blocks_[index_[share_of(run, 0)]], run.offset, run.bytes, {to.data(), ranks_});
  }

  // [offset, offset + bytes) of the blocks of a share, one after the other.
  void copy(std::size_t share, std::uint64_t offset, std::size_t bytes, std::byte* to, Where where) const {
    const std::uint64_t first = index_[share], end = index_[share + 1];
    const auto begin = starts_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto above = std::upper_bound(begin, begin + static_cast<std::ptrdiff_t>(end - first), offset);
    std::uint64_t block = static_cast<std::uint64_t>(above - starts_.begin()) - 1;
    for (offset -= starts_[block]; bytes > 0; ++block, offset = 0) {
      const Block& b = blocks_[block];
      std::size_t length = std::min<std::uint64_t>(b.bytes() - offset, bytes);
      if (block + 1 < end && alternate(b, blocks_[block + 1])) {
        const std::size_t more = std::min<std::uint64_t>(b.bytes(), bytes - length);
        copy_pair(b, offset, length, to, blocks_[++block], 0, more, to + length, where);
        length += more;
      } else {
        copy_one(where, b, offset, length, to, Ahead::kRows);
      }
      to += length, bytes -= length;
    }
  }

  // [a, a + a_bytes) of `first` and [b, b + b_bytes) of `second`; what lies together is read together.
  static void copy_pair(const Block& first, std::uint64_t a, std::size_t a_bytes, std::byte* to_a,
                        const Block& second, std::uint64_t b, std::size_t b_bytes, std::byte* to_b,
                        Where where) {
    const std::uint64_t begin = std::max(a, b), end = std::min(a + a_bytes, b + b_bytes);
    if (begin >= end) {  // the other half's bytes are read soon, too
      copy_one(where, first, a, a_bytes, to_a, Ahead::kGaps);
      copy_one(where, second, b, b_bytes, to_b, Ahead::kGaps);
      return;
    }
    copy_one(where, first, a, begin - a, to_a, Ahead::kRows);
    copy_one(where, second, b, begin - b, to_b, Ahead::kRows);
    copy_both(first, second, begin, end - begin, to_a + (begin - a), to_b + (begin - b), where);
    copy_one(where, first, end, a + a_bytes - end, to_a + (end - a), Ahead::kRows);
    copy_one(where, second, end, b + b_bytes - end, to_b + (end - b), Ahead::kRows);
  }

  static void copy_both(const Block& first, const Block& second, std::uint64_t offset, std::size_t bytes,
                        std::byte* to_first, std::byte* to_second, Where where) {
    if (first.count != 1) {  // columns
      const std::uint64_t few = kTileColumns * first.rows * first.row_bytes;
      for (std::size_t at = 0, length; at < bytes; at += length) {
        length = std::min(few, bytes - at);
        copy_one(where, first, offset + at, length, to_first + at, Ahead::kGaps);
        copy_one(where, second, offset + at, length, to_second + at, Ahead::kNothing);
      }
    } else if (where == kInCaches) {
      copy_side_by_side(first, offset, bytes, std::array{to_first, to_second});
    } else {
      alignas(64) std::array<std::array<std::byte, kStage>, 2> stages;
      for (std::size_t at = 0, length; at < bytes; at += length) {
        length = std::min(kStage, bytes - at);
        copy_side_by_side(first, offset + at, length, std::array{stages[0].data(), stages[1].data()});
        copy_out(to_first + at, stages[0].data(), length);
        copy_out(to_second + at, stages[1].data(), length);
      }
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
  std::uint64_t paired_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_block_writer(std::vector<Block> blocks, std::vector<std::uint64_t> index,
                                          std::size_t experts, std::size_t ranks, std::size_t kinds,
                                          std::int64_t layer) {
  if (ranks == 0 || ranks > kMaxRanks || index.size() != experts * ranks * kinds + 1 || index.front() != 0 ||
      index.back() != blocks.size() || !std::is_sorted(index.begin(), index.end())) {
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
