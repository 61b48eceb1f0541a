// How fast a device takes bytes from one place in host memory: the limit that everything else is held
// against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device.h"

namespace layercast {

// Copies `bytes` from `from` to `to` in pieces, `rounds` times, eight pieces in flight; nanoseconds until the
// last one has arrived. Throws what the device throws, and Error(kTimeout) where no piece arrives for 10 s.
std::uint64_t measure_copies(Device& device, const std::byte* from, std::byte* to, std::size_t bytes,
                             std::size_t piece_bytes, std::size_t rounds);

}  // namespace layercast
