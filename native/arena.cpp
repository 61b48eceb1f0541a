#include "arena.h"

#include "layout.h"
#include "pieces.h"

namespace layercast {

namespace {

class ArenaView final : public SlotView {
 public:
  ArenaView(const std::vector<std::size_t>& kind_bytes, const std::vector<std::byte*>& kinds)
      : kind_bytes_(kind_bytes), kinds_(kinds) {}
  std::byte* address(std::size_t, const Run& run) const override {
    return kinds_[run.kind] + run.expert * kind_bytes_[run.kind] + run.offset;
  }

 private:
  const std::vector<std::size_t>& kind_bytes_;
  const std::vector<std::byte*>& kinds_;
};

class SlotsView final : public SlotView {
 public:
  SlotsView(std::byte* slot, std::size_t piece_bytes) : slot_(slot), piece_bytes_(piece_bytes) {}
  std::byte* address(std::size_t rank, const Run& run) const override {
    return slot_ + rank * piece_bytes_ + run.piece_offset;
  }

 private:
  std::byte* slot_;
  std::size_t piece_bytes_;
};

}  // namespace

void fill_arena(Writer& writer, std::int64_t layer, std::size_t rank, std::size_t ranks, std::size_t first,
                std::size_t count, const std::vector<std::size_t>& kind_bytes,
                const std::vector<std::byte*>& kinds) {
  if (kinds.size() != kind_bytes.size() || rank >= ranks) {
    refuse(Code::kArgument, "arena: expected one address per kind and a rank below " + std::to_string(ranks));
  }
  writer.check(layer, first + count, ranks, kind_bytes);
  const Cut cut(kind_bytes, first + count, 1, true);  // an expert a piece
  const ArenaView view(kind_bytes, kinds);
  std::vector<Run> runs;
  for (std::size_t expert = first; expert < first + count; ++expert) {
    cut.runs(expert, runs);
    writer.fill_share({layer, expert, 0, runs, ranks, kind_bytes.size()}, view, rank);
  }
}

void fill_slots(Writer& writer, std::int64_t layer, std::size_t ranks, std::size_t experts,
                const std::vector<std::size_t>& kind_bytes, std::size_t piece_bytes, std::byte* slots,
                std::size_t count) {
  if (ranks == 0 || ranks > kMaxRanks || experts == 0 || piece_bytes == 0 || count == 0) {
    refuse(Code::kArgument, "slots: expected 1 to " + std::to_string(kMaxRanks) +
                                " ranks, and experts, slots and bytes of a piece > 0");
  }
  writer.check(layer, experts, ranks, kind_bytes);
  const Cut cut(kind_bytes, experts, piece_bytes, false, writer.paired());
  std::vector<Run> runs;
  for (std::size_t piece = 0; piece < cut.pieces(); ++piece) {
    cut.runs(piece, runs);
    const std::size_t slot = piece % count;
    const SlotsView view(slots + slot * ranks * piece_bytes, piece_bytes);
    writer.fill({layer, piece, slot, runs, ranks, kind_bytes.size()}, view);
  }
}

}  // namespace layercast
