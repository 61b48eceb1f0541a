// Columns of a matrix as rows, by tiles. Reading a column element by element fetches a cache line, and often a page's
// translation, for each. A tile reads whole lines, turns them in registers and writes whole lines.
#include <array>
#include <bit>
#include <utility>

#include "writers/block.h"

namespace layercast {

namespace {

constexpr std::size_t kTileBytes = 64;  // of each row of a tile that is written, and of each that is read

#if defined(__clang__) || __GNUC__ >= 12
template <typename T>
struct Lanes;
template <>
struct Lanes<std::uint8_t> {
  typedef std::uint8_t Vector __attribute__((vector_size(16)));
  static Vector low(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  static Vector high(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
  static Vector even(Vector a, Vector b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  }
};
template <>
struct Lanes<std::uint16_t> {
  typedef std::uint16_t Vector __attribute__((vector_size(16)));
  static Vector low(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
  static Vector high(Vector a, Vector b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
  static Vector even(Vector a, Vector b) { return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14); }
};

template <typename T, typename Rows, std::size_t... kPair>
inline Rows zip_halves(const Rows& rows, std::index_sequence<kPair...>) {
  Rows next;
  ((next[2 * kPair] = Lanes<T>::low(rows[kPair], rows[kPair + sizeof...(kPair)]),
    next[2 * kPair + 1] = Lanes<T>::high(rows[kPair], rows[kPair + sizeof...(kPair)])),
   ...);
  return next;
}

// A square of as many elements as a vector has, from rows `stride` apart into rows `pitch` apart. kStep 2: of every
// second element. Reads up to the element behind the last one.
template <typename T, std::size_t kStep>
void turn_square(const std::byte* from, std::uint64_t stride, std::byte* to, std::size_t pitch) {
  using Vector = typename Lanes<T>::Vector;
  constexpr std::size_t kSide = sizeof(Vector) / sizeof(T);
  std::array<Vector, kSide> rows;
  for (std::size_t i = 0; i < kSide; ++i, from += stride) {
    std::memcpy(&rows[i], from, sizeof(Vector));
    if constexpr (kStep == 2) {
      Vector more;
      std::memcpy(&more, from + sizeof(Vector), sizeof(Vector));
      rows[i] = Lanes<T>::even(rows[i], more);
    }
  }
  // Each round halves the distance between neighbours of one column.
  [&]<std::size_t... kRound>(std::index_sequence<kRound...>) {
    (((void)kRound, rows = zip_halves<T>(rows, std::make_index_sequence<kSide / 2>{})), ...);
  }(std::make_index_sequence<std::countr_zero(kSide)>{});
  for (std::size_t i = 0; i < kSide; ++i) std::memcpy(to + i * pitch, &rows[i], sizeof(Vector));
}
constexpr bool kVectors = true;
#else
template <typename T, std::size_t kStep>
void turn_square(const std::byte*, std::uint64_t, std::byte*, std::size_t) {}
constexpr bool kVectors = false;
#endif

// `across` columns of `down` elements into rows `pitch` apart. `last`: behind the last column lies nothing.
template <typename T, std::size_t kStep>
void turn(const std::byte* from, std::uint64_t stride, std::size_t across, std::size_t down, bool last, std::byte* to,
          std::size_t pitch) {
  constexpr std::size_t kSide = 16 / sizeof(T), kWide = kStep * sizeof(T);
  const std::size_t safe = kVectors ? across - (kStep > 1 && last ? 1 : 0) : 0;
  const std::size_t columns = safe / kSide * kSide, rows = down / kSide * kSide;
  for (std::size_t j = 0; j < rows; j += kSide) {
    for (std::size_t i = 0; i < columns; i += kSide)
      turn_square<T, kStep>(from + j * stride + i * kWide, stride, to + i * pitch + j * sizeof(T), pitch);
  }
  for (std::size_t j = 0; j < down; ++j) {
    for (std::size_t i = j < rows ? columns : 0; i < across; ++i)
      std::memcpy(to + i * pitch + j * sizeof(T), from + j * stride + i * kWide, sizeof(T));
  }
}

template <typename T, std::size_t kStep>
void copy_by_tiles(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to) {
  constexpr std::size_t kSide = kTileBytes / sizeof(T);
  constexpr std::size_t kPanel = 8 * kSide;  // columns whose lines one pass over the matrix reads
  alignas(64) std::byte tile[kSide * kTileBytes];
  const std::uint64_t length = block.rows * sizeof(T), end = offset + bytes;
  const std::uint64_t first = offset / length, behind = (end + length - 1) / length;
  for (std::uint64_t panel = first; panel < behind; panel += kPanel) {
    const std::uint64_t columns = std::min<std::uint64_t>(kPanel, behind - panel);
    for (std::uint64_t row = 0; row < block.rows; row += kSide) {
      const std::size_t down = std::min<std::uint64_t>(kSide, block.rows - row);
      for (std::uint64_t column = panel; column < panel + columns; column += kSide) {
        const std::size_t across = std::min<std::uint64_t>(kSide, panel + columns - column);
        const std::byte* from = block.source + row * block.stride + column * block.step;
        for (std::size_t j = 0; j < down && row + kSide + j < block.rows; ++j)
          prefetch(from + (kSide + j) * block.stride, across * block.step);
        turn<T, kStep>(from, block.stride, across, down, column + across == block.count, tile, kTileBytes);
        for (std::size_t i = 0; i < across; ++i) {
          // of this row of the result, what was asked for
          const std::uint64_t at = (column + i) * length + row * sizeof(T);
          const std::uint64_t a = std::max(at, offset), b = std::min(at + down * sizeof(T), end);
          if (b - a == kTileBytes && a < b) {
            std::memcpy(to + (a - offset), tile + i * kTileBytes, kTileBytes);
          } else if (a < b) {
            std::memcpy(to + (a - offset), tile + i * kTileBytes + (a - at), b - a);
          }
        }
      }
    }
  }
}

}  // namespace

bool is_turned(const Block& block) {
  if (block.rows < 2 || block.count < 2) return false;
  return (block.row_bytes == 1 && block.step == 1) ||
         (block.row_bytes == 2 && (block.step == 2 || block.step == 4));
}

void copy_turned(const Block& block, std::uint64_t offset, std::size_t bytes, std::byte* to) {
  if (block.row_bytes == 1) return copy_by_tiles<std::uint8_t, 1>(block, offset, bytes, to);
  if (block.step == 2) return copy_by_tiles<std::uint16_t, 1>(block, offset, bytes, to);
  return copy_by_tiles<std::uint16_t, 2>(block, offset, bytes, to);
}

}  // namespace layercast
