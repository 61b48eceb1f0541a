// The cut of a layer: per rank one string of bytes, expert after expert, each its kinds in order, cut into
// pieces. Every rank derives the same cut from the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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
  // the last one less. Version 2 is the case of one whole expert per piece. `paired`: bit k of it says that
  // the halves of kind k lie together where they are read (gate and up, row by row): a piece then takes the
  // same stretch of both instead of one half after the other.
  Cut(const std::vector<std::size_t>& kind_bytes, std::size_t experts, std::size_t piece_bytes,
      bool whole_experts, std::uint64_t paired = 0);

  std::size_t pieces() const { return pieces_; }
  std::size_t piece_bytes() const { return piece_bytes_; }
  std::size_t experts_per_piece() const { return experts_per_piece_; }
  // Replaces `runs` by those of a piece, in order.
  void runs(std::size_t piece, std::vector<Run>& runs) const;

 private:
  // How far from `at`, in a kind's bytes as they are cut, one run goes, and where in the kind it begins.
  std::pair<std::size_t, std::size_t> stretch(std::size_t kind, std::size_t at) const;

  std::vector<std::size_t> kind_start_;  // in the expert, one more than kinds
  std::vector<std::size_t> stretch_;     // per kind: bytes of a half before the other's turn; 0: not paired
  std::size_t expert_bytes_ = 0;
  std::size_t total_bytes_ = 0;
  std::size_t piece_bytes_ = 0;
  std::size_t experts_per_piece_ = 0;
  std::size_t pieces_ = 0;
};

}  // namespace layercast
