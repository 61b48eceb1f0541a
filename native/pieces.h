// The cut of a layer: per rank one string of bytes, expert after expert, each its kinds in order, cut into
// pieces. Every rank derives the same cut from the same numbers, so nothing about it is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace layercast {

// A stretch of one kind of one expert, and where it lies in the piece.
struct Run {
  std::size_t expert;  // position in the layer
  std::size_t kind;
  std::size_t offset;  // in this expert's kind
  std::size_t bytes;
  std::size_t piece_offset;
};

class Cut {
 public:
  Cut() = default;
  // `whole_experts`: a piece holds as many whole experts as fit, one at least; else exactly `piece_bytes`,
  // the last one less. Version 2 is the case of one whole expert per piece.
  Cut(const std::vector<std::size_t>& kind_bytes, std::size_t experts, std::size_t piece_bytes,
      bool whole_experts);

  std::size_t pieces() const { return pieces_; }
  std::size_t piece_bytes() const { return piece_bytes_; }
  std::size_t experts_per_piece() const { return experts_per_piece_; }
  // Replaces `runs` by those of a piece, in order.
  void runs(std::size_t piece, std::vector<Run>& runs) const;

 private:
  std::vector<std::size_t> kind_start_;  // in the expert, one more than kinds
  std::size_t expert_bytes_ = 0;
  std::size_t total_bytes_ = 0;
  std::size_t piece_bytes_ = 0;
  std::size_t experts_per_piece_ = 0;
  std::size_t pieces_ = 0;
};

}  // namespace layercast
