// Eight lanes of 32 x 32 bit multiplications, the scheme of XXH3's long inputs (Collet, xxhash), with keys
// that depend on the place, so that exchanged stripes are noticed. Not its values: nobody else reads ours.
#include "checksum.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

void add_plain(Lanes& lanes, const std::byte* bytes, std::size_t stripes, std::uint64_t first) {
  for (std::size_t s = 0; s < stripes; ++s) {
    std::uint64_t word[kLanes];
    std::memcpy(word, bytes + s * kStripe, kStripe);
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t mixed = word[i] ^ (kKeys[i] + (first + s) * kStep);
      lanes.sum[i] += (mixed & 0xffffffff) * (mixed >> 32) + (word[i] << 32 | word[i] >> 32);
    }
  }
}

#if defined(__x86_64__)

// The same, four lanes a register.
__attribute__((target("avx2"))) void add_wide(Lanes& lanes, const std::byte* bytes, std::size_t stripes,
                                              std::uint64_t first) {
  const __m256i step = _mm256_set1_epi64x(static_cast<long long>(kStep));
  const __m256i start = _mm256_set1_epi64x(static_cast<long long>(first * kStep));
  __m256i sum[2], key[2];
  for (std::size_t i = 0; i < 2; ++i) {
    sum[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes.sum + 4 * i));
    key[i] = _mm256_add_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kKeys + 4 * i)), start);
  }
  for (std::size_t s = 0; s < stripes; ++s) {
    for (std::size_t i = 0; i < 2; ++i) {
      const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + s * kStripe + 32 * i));
      const __m256i mixed = _mm256_xor_si256(word, key[i]);
      const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
      const __m256i turned = _mm256_shuffle_epi32(word, 0xb1);
      sum[i] = _mm256_add_epi64(sum[i], _mm256_add_epi64(product, turned));
      key[i] = _mm256_add_epi64(key[i], step);
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.sum + 4 * i), sum[i]);
  }
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
