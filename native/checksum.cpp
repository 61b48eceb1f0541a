// Eight lanes of 32 x 32 bit multiplications, the scheme of XXH3's long inputs (Collet, xxhash), with keys
// that depend on the place, so that exchanged stripes are noticed. Not its values: nobody else reads ours.
#include "checksum.h"

#include <cstring>

namespace layercast {

namespace {

constexpr std::size_t kLanes = 8, kStripe = kLanes * sizeof(std::uint64_t);
constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
constexpr std::uint64_t kKeys[kLanes] = {0xb8fe6c3923a44bbe, 0x7c01812cf721ad1c, 0xded46de9839097db,
                                         0x7240a4a4b7b3671f, 0xcb79e64eccc0e578, 0x825ad07dccff7221,
                                         0xb8084674f743248e, 0xe03590e6813a264c};

struct Lanes {
  std::uint64_t sum[kLanes] = {};
};

inline __attribute__((always_inline)) void add_to(Lanes& lanes, const std::byte* bytes, std::size_t stripes,
                                                  std::uint64_t first) {
  std::uint64_t sum[kLanes], keys[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) sum[i] = lanes.sum[i], keys[i] = kKeys[i] + first * kStep;
  for (std::size_t s = 0; s < stripes; ++s) {
    std::uint64_t word[kLanes];
    std::memcpy(word, bytes + s * kStripe, kStripe);
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t mixed = word[i] ^ keys[i];
      sum[i] += (mixed & 0xffffffff) * (mixed >> 32) + (word[i] << 32 | word[i] >> 32);
      keys[i] += kStep;
    }
  }
  for (std::size_t i = 0; i < kLanes; ++i) lanes.sum[i] = sum[i];
}

void add_plain(Lanes& lanes, const std::byte* bytes, std::size_t stripes, std::uint64_t first) {
  add_to(lanes, bytes, stripes, first);
}

#if defined(__x86_64__)
// The same source, compiled for wider registers.
__attribute__((target("avx2"))) void add_wide(Lanes& lanes, const std::byte* bytes, std::size_t stripes,
                                              std::uint64_t first) {
  add_to(lanes, bytes, stripes, first);
}

void add_stripes(Lanes& lanes, const std::byte* bytes, std::size_t stripes, std::uint64_t first) {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  (wide ? add_wide : add_plain)(lanes, bytes, stripes, first);
}
#else
void add_stripes(Lanes& lanes, const std::byte* bytes, std::size_t stripes, std::uint64_t first) {
  add_plain(lanes, bytes, stripes, first);
}
#endif

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t checksum(const std::byte* bytes, std::size_t size) {
  Lanes lanes;
  const std::size_t stripes = size / kStripe, rest = size % kStripe;
  add_stripes(lanes, bytes, stripes, 0);
  if (rest != 0) {
    std::byte last[kStripe] = {};
    std::memcpy(last, bytes + stripes * kStripe, rest);
    add_stripes(lanes, last, 1, stripes);
  }
  std::uint64_t out = mix(size + kStep);
  for (const std::uint64_t sum : lanes.sum) out = mix(out + sum);
  return out;
}

}  // namespace layercast
