// The writers that need no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "writer.h"
#include "writers/block.h"

namespace layercast {

// Source in memory, laid out [expert][rank][kind]; expert x of a layer comes from expert x %
// `source_experts`.
std::unique_ptr<Writer> make_memory_writer(const std::byte* source, std::size_t source_bytes,
                                           std::size_t source_experts, std::vector<std::size_t> kind_bytes,
                                           std::size_t ranks);

// Stands for the layers that every rank has in its own arena.
std::unique_ptr<Writer> make_direct_writer();

// A C function, called per expert; pointers are [rank][kind]. Anything but 0 is an error.
using WriterFunction = int (*)(void* user, std::int64_t layer, std::size_t expert, std::size_t ranks,
                               std::size_t kinds, void* const* pointers);
std::unique_ptr<Writer> make_function_writer(WriterFunction function, void* user);

// Bytes that only their place determines, without any source: see `pattern_word`.
std::unique_ptr<Writer> make_pattern_writer(std::uint64_t seed);
// How many of `experts` experts in the destinations are not what a pattern writer wrote; -1 in `first_bad`:
// none.
std::size_t count_wrong_pattern(std::uint64_t seed, std::int64_t layer, std::size_t rank, std::size_t experts,
                                const std::vector<std::size_t>& kind_bytes,
                                const std::vector<const std::byte*>& destinations, std::int64_t& first_bad);

// Slices of mapped checkpoint files. `index` holds, for (expert * ranks + rank) * kinds + kind, the first of
// its blocks; one entry more at the end. A kind's bytes are its blocks one after the other, row
// after row.
std::unique_ptr<Writer> make_block_writer(std::vector<Block> blocks, std::vector<std::uint64_t> index,
                                          std::size_t experts, std::size_t ranks, std::size_t kinds,
                                          std::int64_t layer);

}  // namespace layercast
