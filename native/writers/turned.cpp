// Columns of a matrix as rows, by tiles. Reading a column element by element fetches a cache line, and often
// a page's translation, for each. A tile reads whole lines, turns them in registers and writes whole lines.
#include <array>
#include <bit>
#include <utility>

#include "writers/block.h"

// Everything below is compiled twice where the processor may know AVX2, into functions of different targets.
#define LAYERCAST_INLINE [[gnu::always_inline]] inline

namespace layercast {

namespace {

constexpr std::size_t kTileBytes = 64;  // of each row of a tile that is written, and of each that is read

#if defined(__clang__) || __GNUC__ >= 12

// Two lanes of 16 bytes, which nothing crosses: one AVX2 register, or two of 128 bits.
typedef std::uint8_t Bytes __attribute__((vector_size(32)));
typedef std::uint16_t Words __attribute__((vector_size(32)));

struct Lanes8 {
  using Vector = Bytes;
  LAYERCAST_INLINE static void zip(const Bytes& a, const Bytes& b, Bytes& low, Bytes& high) {
    low = __builtin_shufflevector(a, b, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 16, 48, 17,
                                  49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55);
    high = __builtin_shufflevector(a, b, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 24, 56,
                                   25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63);
  }
};

struct Lanes16 {
  using Vector = Words;
  LAYERCAST_INLINE static void zip(const Words& a, const Words& b, Words& low, Words& high) {
    low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27);
    high = __builtin_shufflevector(a, b, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31);
  }
};

template <typename T>
using LanesOf = std::conditional_t<sizeof(T) == 1, Lanes8, Lanes16>;

// Every second element of two vectors, per lane: 0 to 3 and 8 to 11, 4 to 7 and 12 to 15.
LAYERCAST_INLINE void take_even(Words& a, const Words& b) {
  a = __builtin_shufflevector(a, b, 0, 2, 4, 6, 16, 18, 20, 22, 8, 10, 12, 14, 24, 26, 28, 30);
}

template <typename Lanes, std::size_t kRows, std::size_t... kPair>
LAYERCAST_INLINE void zip_halves(std::array<typename Lanes::Vector, kRows>& rows,
                                 std::index_sequence<kPair...>) {
  std::array<typename Lanes::Vector, kRows> next;
  (Lanes::zip(rows[kPair], rows[kPair + kRows / 2], next[2 * kPair], next[2 * kPair + 1]), ...);
  rows = next;
}

// 2 * kSide columns of kSide elements, from rows `stride` apart into rows `pitch` apart. kStep 2: of every
// second element. Reads up to the element behind the last one.
template <typename T, std::size_t kStep>
LAYERCAST_INLINE void turn_square(const std::byte* from, std::uint64_t stride, std::byte* to,
                                  std::size_t pitch) {
  using Lanes = LanesOf<T>;
  using Vector = typename Lanes::Vector;
  constexpr std::size_t kSide = 16 / sizeof(T);
  std::array<Vector, kSide> rows;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kSide; ++i) {
    std::memcpy(&rows[i], from + i * stride, sizeof(Vector));
    if constexpr (kStep == 2) {
      Vector more;
      std::memcpy(&more, from + i * stride + sizeof(Vector), sizeof(Vector));
      take_even(rows[i], more);
    }
  }
  // Each round halves the distance between neighbours of one column.
  zip_halves<Lanes>(rows, std::make_index_sequence<kSide / 2>{});
  zip_halves<Lanes>(rows, std::make_index_sequence<kSide / 2>{});
  zip_halves<Lanes>(rows, std::make_index_sequence<kSide / 2>{});
  if constexpr (kSide == 16) zip_halves<Lanes>(rows, std::make_index_sequence<kSide / 2>{});
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kSide; ++i) {
    const std::size_t low = kStep == 1 || i < 4 ? i : i + 4, high = kStep == 1 ? i + kSide : low + 4;
    const auto* lanes = reinterpret_cast<const std::byte*>(&rows[i]);
    std::memcpy(to + low * pitch, lanes, 16);
    std::memcpy(to + high * pitch, lanes + 16, 16);
  }
}
constexpr bool kVectors = true;
#else
template <typename T, std::size_t kStep>
void turn_square(const std::byte*, std::uint64_t, std::byte*, std::size_t) {}
constexpr bool kVectors = false;
#endif

// `across` columns of `down` elements into rows `pitch` apart. `last`: behind the last column lies nothing.
template <typename T, std::size_t kStep>
LAYERCAST_INLINE void turn(const std::byte* from, std::uint64_t stride, std::size_t across, std::size_t down,
                           bool last, std::byte* to) {
  constexpr std::size_t kSide = 16 / sizeof(T), kWide = kStep * sizeof(T);
  const std::size_t safe = kVectors ? across - (kStep > 1 && last ? 1 : 0) : 0;
  const std::size_t columns = safe / (2 * kSide) * (2 * kSide), rows = down / kSide * kSide;
  for (std::size_t j = 0; j < rows; j += kSide) {
    for (std::size_t i = 0; i < columns; i += 2 * kSide)
      turn_square<T, kStep>(from + j * stride + i * kWide, stride, to + i * kTileBytes + j * sizeof(T),
                            kTileBytes);
  }
  if (columns == across && rows == down) return;
  for (std::size_t j = 0; j < down; ++j) {
    for (std::size_t i = j < rows ? columns : 0; i < across; ++i)
      std::memcpy(to + i * kTileBytes + j * sizeof(T), from + j * stride + i * kWide, sizeof(T));
  }
}

template <typename T, std::size_t kStep>
LAYERCAST_INLINE void copy_by_tiles(const Block& block, std::uint64_t offset, std::size_t bytes,
                                    std::byte* to) {
  constexpr std::size_t kSide = kTileBytes / sizeof(T), kWide = kStep * sizeof(T);
  constexpr std::size_t kPanel = 8 * kSide;  // columns whose lines one pass over the matrix reads
  alignas(64) std::byte tile[kSide * kTileBytes];
  const std::uint64_t length = block.rows * sizeof(T), end = offset + bytes;
  const std::uint64_t first = offset / length, behind = (end + length - 1) / length;
  for (std::uint64_t panel = first; panel < behind; panel += kPanel) {
    const std::uint64_t columns = std::min<std::uint64_t>(kPanel, behind - panel);
    for (std::uint64_t row = 0; row < block.rows; row += kSide) {
      const std::size_t down = std::min<std::uint64_t>(kSide, block.rows - row);
      const std::size_t next = std::min<std::uint64_t>(kSide, block.rows - row - down);
      for (std::uint64_t column = panel; column < panel + columns; column += kSide) {
        const std::size_t across = std::min<std::uint64_t>(kSide, panel + columns - column);
        const std::byte* from = block.source + row * block.stride + column * kWide;
        for (std::size_t j = 0; j < next; ++j) {
          const std::byte* ahead = from + (kSide + j) * block.stride;
          for (std::size_t at = 64; at <= across * kWide; at += 64) __builtin_prefetch(ahead + at - 1);
          if (column == panel) __builtin_prefetch(ahead);
        }
        turn<T, kStep>(from, block.stride, across, down, column + across == block.count, tile);
        const std::uint64_t start = column * length + row * sizeof(T);
        if (down == kSide && start >= offset && start + (across - 1) * length + kTileBytes <= end) {
          std::byte* out = to + (start - offset);
          for (std::size_t i = 0; i < across; ++i)
            std::memcpy(out + i * length, tile + i * kTileBytes, kTileBytes);
          continue;
        }
        for (std::size_t i = 0; i < across; ++i) {  // of each row of the result, what was asked for
          const std::uint64_t at = start + i * length;
          const std::uint64_t a = std::max(at, offset), b = std::min(at + down * sizeof(T), end);
          if (a < b) std::memcpy(to + (a - offset), tile + i * kTileBytes + (a - at), b - a);
        }
      }
    }
  }
}

LAYERCAST_INLINE void copy_any(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to) {
  if (block.row_bytes == 1) return copy_by_tiles<std::uint8_t, 1>(block, offset, bytes, to);
  if (block.step == 2) return copy_by_tiles<std::uint16_t, 1>(block, offset, bytes, to);
  return copy_by_tiles<std::uint16_t, 2>(block, offset, bytes, to);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void copy_avx2(const Block& block, std::uint64_t offset, std::size_t bytes,
                                               std::byte* to) {
  copy_any(block, offset, bytes, to);
}
#endif

}  // namespace

bool is_turned(const Block& block) {
  if (block.rows < 2 || block.count < 2) return false;
  return (block.row_bytes == 1 && block.step == 1) ||
         (block.row_bytes == 2 && (block.step == 2 || block.step == 4));
}

void copy_turned(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return copy_avx2(block, offset, bytes, to);
#endif
  copy_any(block, offset, bytes, to);
}

}  // namespace layercast
