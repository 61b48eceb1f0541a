#include "pieces.h"

#include <algorithm>

namespace layercast {

Cut::Cut(const std::vector<std::size_t>& kind_bytes, std::size_t experts, std::size_t piece_bytes,
         bool whole_experts) {
  kind_start_.push_back(0);
  for (const std::size_t bytes : kind_bytes) kind_start_.push_back(kind_start_.back() + bytes);
  expert_bytes_ = kind_start_.back();
  total_bytes_ = expert_bytes_ * experts;
  experts_per_piece_ = whole_experts ? std::max<std::size_t>(1, piece_bytes / expert_bytes_) : 0;
  piece_bytes_ = whole_experts ? experts_per_piece_ * expert_bytes_ : piece_bytes;
  pieces_ = (total_bytes_ + piece_bytes_ - 1) / piece_bytes_;
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
    const std::size_t bytes = std::min(kind_start_[kind + 1] - in_expert, end - at);
    runs.push_back({expert, kind, in_expert - kind_start_[kind], bytes, at - begin});
    at += bytes;
    if (++kind + 1 == kind_start_.size()) kind = 0, ++expert;
  }
}

}  // namespace layercast
