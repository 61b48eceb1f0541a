// One layer's load, as every rank states it: which experts travel, which are on the device already.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace layercast {

// An expert that this rank's device holds already.
struct Resident {
  std::size_t expert;
  std::vector<const std::byte*> addresses;  // on the device, one per kind; empty: in its place in the layer
};

struct Job {
  std::uint64_t epoch = 0;
  std::int64_t layer = -1;
  std::size_t streamed = 0;        // experts that travel
  bool selected = false;           // false: 0 .. streamed - 1
  std::vector<std::size_t> ids{};  // else these
  std::vector<Resident> residents{};
  // Whole experts per rank: which one owns expert x; the i-th of a rank's travels at position i. Empty: every
  // rank has a share of every expert.
  std::vector<std::size_t> owners{};
  // Positions from this one on are empty on this rank: their pieces are acknowledged, not copied.
  std::size_t owned = SIZE_MAX;
  std::size_t device_layer = 0;  // where this rank puts it
  std::uint32_t mark = 0;        // the device's number for it

  std::size_t owned_by(std::size_t rank) const {
    return owners.empty() ? SIZE_MAX
                          : static_cast<std::size_t>(std::count(owners.begin(), owners.end(), rank));
  }

  std::size_t expert(std::size_t position) const { return selected ? ids[position] : position; }
  // Experts that a writer must know.
  std::size_t needed() const {
    if (!selected) return streamed;
    return ids.empty() ? 0 : *std::max_element(ids.begin(), ids.end()) + 1;
  }
  // All ranks must mean the same experts in the same places: a digest (FNV-1a); 0 for the first `streamed` of
  // a layer.
  std::uint64_t selection() const {
    if (!selected && residents.empty() && owners.empty()) return 0;
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
    for (const std::size_t id : ids) add(id);
    for (const Resident& resident : residents) add(~static_cast<std::uint64_t>(resident.expert));
    for (const std::size_t rank : owners) add((std::uint64_t{1} << 32) + rank);
    return hash | 1;
  }
};

}  // namespace layercast
