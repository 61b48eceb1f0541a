#include "arena.h"

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

}  // namespace layercast
