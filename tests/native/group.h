// A whole group inside one process, a thread per rank.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "transport.h"
#include "writers/writers.h"

namespace layercast {

inline constexpr std::uint64_t kSeed = 3;

struct Shape {
  std::size_t tp;
  std::vector<std::size_t> kinds;
  std::size_t experts;
  std::uint64_t version;
  std::size_t slots;
  std::size_t piece_bytes;
  bool link;
  bool cuda = false;
};

class Group {
 public:
  explicit Group(const Shape& shape) : shape_(shape) {
    const bool version2 = shape.version == kVersionExperts;
    slots_ = version2 ? kVersion2Slots : shape.slots;
    const std::size_t ranks = version2 ? kVersion2Ranks : shape.tp;
    for (const std::size_t bytes : shape.kinds) expert_bytes_ += bytes;
    slot_bytes_ = std::max(expert_bytes_, shape.piece_bytes);
    control_.resize(std::max(kVersion2RegionBytes, layout_of(ranks, slots_).region_bytes) / kCellBytes);
    ControlBlock::initialize(control_.data(), control_.size() * kCellBytes, shape.tp, shape.version, ranks,
                             slots_);
    memory_.resize(shape.tp * slots_ * slot_bytes_);
    for (std::size_t r = 0; r < shape.tp; ++r) transports_.push_back(std::make_unique<Transport>(options(r)));
  }

  Transport& operator[](std::size_t rank) { return *transports_[rank]; }

  // Runs `body(rank)` in a thread each; counts those that threw.
  std::size_t each(const std::function<void(std::size_t)>& body) {
    std::atomic<std::size_t> failed{0};
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < shape_.tp; ++r) {
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (const Error&) {
          ++failed;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return failed;
  }

  void load(std::size_t rank, std::uint64_t epoch, std::int64_t layer, Writer& writer) {
    (*this)[rank].join({.epoch = epoch, .layer = layer, .streamed = shape_.experts});
    if (rank == 0) (*this)[rank].run(epoch, layer, shape_.experts, writer);
    (*this)[rank].wait(epoch);
  }

  void check(std::size_t rank, std::int64_t layer) {
    const auto& destinations = (*this)[rank].options().destinations;
    std::int64_t first = 0;
    CHECK(count_wrong_pattern(kSeed, layer, rank, shape_.experts, shape_.kinds,
                              {destinations.begin(), destinations.end()}, first) == 0);
  }

 private:
  struct alignas(kCellBytes) Line {
    std::byte bytes[kCellBytes];
  };

  TransportOptions options(std::size_t rank) {
    TransportOptions o;
    o.control = control_.data();
    o.control_bytes = control_.size() * kCellBytes;
    o.rank = rank;
    o.tp_size = shape_.tp;
    o.kind_bytes = shape_.kinds;
    o.experts = shape_.experts;
    o.slot_bytes = slot_bytes_;
    o.piece_bytes = shape_.piece_bytes;
    if (shape_.cuda) {
      o.device = make_cuda_device({.library = FAKE_CUDA, .ordinal = static_cast<int>(rank)});
      o.device->pin(memory_.data() + rank * slots_ * slot_bytes_, slots_ * slot_bytes_);
    } else {
      o.device =
          shape_.link ? make_link_device({.bytes_per_second = 4e9, .latency_ns = 1000}) : make_host_device();
    }
    o.layer_limit_ns = o.join_limit_ns = 60'000 * kMillisecond;
    for (std::size_t s = 0; s < slots_; ++s) {
      add_slot(s, rank, o.local_slots);
      for (std::size_t r = 0; rank == 0 && r < shape_.tp; ++r) add_slot(s, r, o.all_slots);
    }
    return o;
  }

  void add_slot(std::size_t slot, std::size_t rank, std::vector<std::byte*>& out) {
    std::byte* base = memory_.data() + (rank * slots_ + slot) * slot_bytes_;
    if (shape_.version == kVersionPieces) return out.push_back(base);
    for (const std::size_t bytes : shape_.kinds) {
      out.push_back(base);
      base += bytes;
    }
  }

  Shape shape_;
  std::size_t slots_ = 0, expert_bytes_ = 0, slot_bytes_ = 0;
  std::vector<Line> control_;
  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

}  // namespace layercast
