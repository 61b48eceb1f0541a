// Synthetic bytes. Word i (8 bytes, little-endian) of a kind of an expert of a rank is start + i * step, both
// hashed from (seed, layer, expert, rank, kind): no two shares are alike, and every word says where it
// belongs.
#include <algorithm>
#include <cstring>

#include "writers/writers.h"

namespace layercast {

namespace {

// splitmix64's finaliser (Steele, Lea, Flood 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Sequence {
  std::uint64_t start, step;
  std::uint64_t word(std::uint64_t i) const { return start + i * step; }
};

Sequence sequence(std::uint64_t seed, std::int64_t layer, std::size_t expert, std::size_t rank,
                  std::size_t kind) {
  const std::uint64_t start =
      mix(mix(mix(mix(mix(seed) + static_cast<std::uint64_t>(layer)) + expert) + rank) + kind);
  return {start, mix(start) | 1};
}

// Calls `use(offset in the run, the words' bytes, length)` over [offset, offset + bytes), in stretches that
// stay in the innermost cache.
template <class Use>
void generate(const Sequence& words, std::size_t offset, std::size_t bytes, Use&& use) {
  constexpr std::size_t kWords = 512;
  std::uint64_t buffer[kWords];
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t skip = (offset + done) % 8;
    const std::uint64_t first = (offset + done) / 8;
    for (std::size_t i = 0; i < kWords; ++i) buffer[i] = words.word(first + i);
    const std::size_t length = std::min(bytes - done, sizeof buffer - skip);
    use(done, reinterpret_cast<const std::byte*>(buffer) + skip, length);
    done += length;
  }
}

class PatternWriter final : public Writer {
 public:
  explicit PatternWriter(std::uint64_t seed) : seed_(seed) {}

  bool whole_experts() const override { return false; }
  bool parallel() const override { return true; }
  void check(std::int64_t, std::size_t, std::size_t, std::span<const std::size_t>) override {}

  void fill(const Piece& piece, const SlotView& slot) override {
    for (std::size_t r = 0; r < piece.ranks; ++r) fill_share(piece, slot, r);
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) {
      std::byte* to = slot.address(rank, run);
      generate(sequence(seed_, piece.layer, run.expert, rank, run.kind), run.offset, run.bytes,
               [to](std::size_t at, const std::byte* from, std::size_t n) { std::memcpy(to + at, from, n); });
    }
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<Writer> make_pattern_writer(std::uint64_t seed) {
  return std::make_unique<PatternWriter>(seed);
}

std::size_t count_wrong_pattern(std::uint64_t seed, std::int64_t layer, std::size_t rank, std::size_t experts,
                                const std::vector<std::size_t>& kind_bytes,
                                const std::vector<const std::byte*>& destinations, std::int64_t& first_bad) {
  std::size_t wrong = 0;
  first_bad = -1;
  for (std::size_t x = 0; x < experts; ++x) {
    bool same = true;
    for (std::size_t k = 0; k < kind_bytes.size(); ++k) {
      const std::byte* seen = destinations[k] + x * kind_bytes[k];
      generate(sequence(seed, layer, x, rank, k), 0, kind_bytes[k],
               [&](std::size_t at, const std::byte* expected, std::size_t n) {
                 same = same && std::memcmp(seen + at, expected, n) == 0;
               });
    }
    if (same) continue;
    if (wrong++ == 0) first_bad = static_cast<std::int64_t>(x);
  }
  return wrong;
}

}  // namespace layercast
