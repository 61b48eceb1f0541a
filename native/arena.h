// One rank's share of a layer in host memory, laid out as on the device: per kind all experts one after the
// other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "writer.h"

namespace layercast {

// Fills experts [first, first + count) of rank `rank`; `kinds` are the layer's addresses, one per kind.
// Several threads may be at it, each with other experts. Throws Error(kArgument).
void fill_arena(Writer& writer, std::int64_t layer, std::size_t rank, std::size_t ranks, std::size_t first,
                std::size_t count, const std::vector<std::size_t>& kind_bytes,
                const std::vector<std::byte*>& kinds);

// What rank 0's writing thread does in a layer, without a group, for tests and measurements: fills piece
// after piece for all ranks. `slots` are used in turns; each is [rank][piece_bytes]. Throws Error(kArgument).
void fill_slots(Writer& writer, std::int64_t layer, std::size_t ranks, std::size_t experts,
                const std::vector<std::size_t>& kind_bytes, std::size_t piece_bytes, std::byte* slots,
                std::size_t count);

}  // namespace layercast
