// Who fills the slots. A writer says whether it can fill any range of bytes or only whole experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "error.h"
#include "pieces.h"

namespace layercast {

// Where the slot's bytes lie, for every rank.
class SlotView {
 public:
  virtual ~SlotView() = default;
  virtual std::byte* address(std::size_t rank, const Run& run) const = 0;
};

struct Piece {
  std::int64_t layer;
  std::size_t number;
  std::size_t slot;
  std::span<const Run> runs;
  std::size_t ranks;
  std::size_t kinds;
};

class Writer {
 public:
  virtual ~Writer() = default;
  virtual bool whole_experts() const = 0;
  // Whether several threads may be inside fill() at once, each with another piece.
  virtual bool parallel() const { return false; }
  // Nothing to fill: every rank has the layer in its own arena.
  virtual bool direct() const { return false; }
  // Checks that it can serve experts below `experts` of such a layer; throws Error(kArgument) before anything
  // starts.
  virtual void check(std::int64_t layer, std::size_t experts, std::size_t ranks,
                     std::span<const std::size_t> kind_bytes) = 0;
  // Bit k: the halves of kind k lie together where they are read, see `Cut`.
  virtual std::uint64_t paired() const { return 0; }
  // Whether the rank has a share of the expert: with whole experts per rank it may not.
  virtual bool owns(std::size_t /*rank*/, std::size_t /*expert*/) const { return true; }
  // Fills every rank's share of the piece.
  virtual void fill(const Piece& piece, const SlotView& slot) = 0;
  // Fills one rank's, where the writer can.
  virtual void fill_share(const Piece& /*piece*/, const SlotView& /*slot*/, std::size_t /*rank*/) {
    refuse(Code::kArgument, "this writer cannot fill one rank's share alone");
  }
};

}  // namespace layercast
