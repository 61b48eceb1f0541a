// Copies into a device layer in host memory: far more bytes than the caches hold, read again much later.
#pragma once

#include <cstddef>

namespace layercast {

// As memcpy. Large copies are stored past the caches where the processor can: a cached store reads the
// destination's line first, a third of the traffic, and drives the slots out of the cache.
void copy_out(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace layercast
