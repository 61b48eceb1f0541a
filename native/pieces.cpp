#include "pieces.h"

#include <algorithm>

namespace layercast {

Cut::Cut(const std::vector<std::size_t>& kind_bytes, std::size_t experts, std::size_t piece_bytes,
         bool whole_experts, std::uint64_t paired) {
  kind_start_.push_back(0);
  for (const std::size_t bytes : kind_bytes) kind_start_.push_back(kind_start_.back() + bytes);
  expert_bytes_ = kind_start_.back();
  total_bytes_ = expert_bytes_ * experts;
  experts_per_piece_ = whole_experts ? std::max<std::size_t>(1, piece_bytes / expert_bytes_) : 0;
  piece_bytes_ = whole_experts ? experts_per_piece_ * expert_bytes_ : piece_bytes;
  pieces_ = (total_bytes_ + piece_bytes_ - 1) / piece_bytes_;
  // Two stretches of each half in a piece: few copies for the device, and few that a piece's edge parts.
  const std::size_t turn = std::max<std::size_t>(1, piece_bytes_ / 4);
  for (std::size_t kind = 0; kind < kind_bytes.size(); ++kind) {
    const bool in_turns = !whole_experts && kind < 64 && (paired >> kind & 1) != 0 &&
                          kind_bytes[kind] % 2 == 0 && kind_bytes[kind] / 2 > turn;
    stretch_.push_back(in_turns ? turn : 0);
  }
}

std::pair<std::size_t, std::size_t> Cut::stretch(std::size_t kind, std::size_t at) const {
  const std::size_t bytes = kind_start_[kind + 1] - kind_start_[kind];
  if (stretch_[kind] == 0) return {bytes - at, at};
  const std::size_t first = at / (2 * stretch_[kind]) * stretch_[kind];  // in each half
  const std::size_t each = std::min(stretch_[kind], bytes / 2 - first), in = at - 2 * first;
  return in < each ? std::pair{each - in, first + in}
                   : std::pair{2 * each - in, bytes / 2 + first + in - each};
}

void Cut::runs(std::size_t piece, std::vector<Run>& runs) const {
  runs.clear();
  const std::size_t begin = piece * piece_bytes_;
  const std::size_t end = std::min(begin + piece_bytes_, total_bytes_);
  std::size_t expert = begin / expert_bytes_;
  std::size_t kind = 0;
  while (begin % expert_bytes_ >= kind_start_[kind + 1]) ++kind;
  for (std::size_t at = begin; at < end;) {
    const std::size_t in_expert = at - expert * expert_bytes_;
    const auto [most, offset] = stretch(kind, in_expert - kind_start_[kind]);
    const std::size_t bytes = std::min(most, end - at);
    runs.push_back({expert, kind, offset, bytes, at - begin});
    at += bytes;
    if (in_expert + bytes < kind_start_[kind + 1]) continue;
    if (++kind + 1 == kind_start_.size()) kind = 0, ++expert;
  }
}

}  // namespace layercast
