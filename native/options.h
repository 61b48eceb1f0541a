// What a transport is made of, and the addresses of its slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "clock.h"
#include "device.h"
#include "writer.h"

namespace layercast {

struct TransportOptions {
  void* control = nullptr;
  std::size_t control_bytes = 0;
  std::size_t rank = 0;
  std::size_t tp_size = 1;
  std::vector<std::size_t> kind_bytes;  // per expert and rank
  std::size_t experts = 0;              // the most a layer may have
  // Version 2: [slot][kind] and, on rank 0, [slot][rank][kind]. Version 3: [slot] and [slot][rank].
  std::vector<std::byte*> local_slots;
  std::vector<std::byte*> all_slots;
  std::size_t slot_bytes = 0;   // version 3: what one slot holds
  std::size_t piece_bytes = 0;  // version 3
  // [device layer][kind], experts x kind_bytes each; empty: the device allocates.
  std::vector<std::byte*> destinations;
  std::size_t device_layers = 1;  // a layer is loaded into the one that its job names
  std::shared_ptr<Device> device;
  std::uint64_t layer_limit_ns = kNever;   // without progress of the layer
  std::uint64_t join_limit_ns = kNever;    // for a live peer that has not come
  std::uint64_t writer_limit_ns = kNever;  // inside one call of the writer
  std::size_t writer_threads = 1;          // rank 0's, the caller's included; for writers that allow it
  std::vector<int> cpus;                   // where this transport's own threads may run; empty: anywhere
  std::size_t verify_every = 0;            // check the bytes of every n-th piece on arrival; 0: none
  std::size_t trace_events = 0;            // how many events the timeline keeps; 0: none
  // Asked after signals and now and then while the caller waits: true ends the call with Interrupted.
  std::function<bool()> interrupted;
};

class SlotMap {
 public:
  SlotMap() = default;
  SlotMap(const std::vector<std::byte*>& pointers, std::size_t ranks, std::size_t kinds, bool by_kind)
      : pointers_(pointers), ranks_(ranks), kinds_(kinds), by_kind_(by_kind) {}

  std::byte* address(std::size_t slot, std::size_t rank, const Run& run) const {
    if (by_kind_) return pointers_[(slot * ranks_ + rank) * kinds_ + run.kind] + run.offset;
    return pointers_[slot * ranks_ + rank] + run.piece_offset;
  }

 private:
  std::vector<std::byte*> pointers_;
  std::size_t ranks_ = 0, kinds_ = 0;
  bool by_kind_ = false;
};

}  // namespace layercast
