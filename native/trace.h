// A timeline of what this rank did, kept while somebody wants it: the last events, in a ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace layercast {

enum class Doing : std::uint64_t { kWriting = 1, kSlotWait = 2, kCopying = 3, kPieceWait = 4 };

struct TraceEvent {
  std::uint64_t start_ns, end_ns;  // CLOCK_MONOTONIC, the same on all ranks of a machine
  std::uint64_t doing;
  std::uint64_t epoch;
  std::uint64_t piece;
  std::uint64_t worker;  // which of rank 0's writing threads
};
static_assert(sizeof(TraceEvent) == 48, "the Python side reads these as six uint64");

class Trace {
 public:
  explicit Trace(std::size_t events) : ring_(events) {}

  bool on() const { return !ring_.empty(); }
  void add(Doing doing, std::uint64_t start, std::uint64_t end, std::uint64_t epoch, std::uint64_t piece,
           std::uint64_t worker = 0) {
    if (ring_.empty()) return;
    const std::uint64_t at = next_.fetch_add(1, std::memory_order_relaxed);
    ring_[at % ring_.size()] = {start, end, static_cast<std::uint64_t>(doing), epoch, piece, worker};
  }
  // Oldest first. Between layers: nobody adds then.
  std::vector<TraceEvent> events() const {
    const std::uint64_t end = next_.load();
    std::vector<TraceEvent> out;
    for (std::uint64_t at = end > ring_.size() ? end - ring_.size() : 0; at < end; ++at) {
      out.push_back(ring_[at % ring_.size()]);
    }
    return out;
  }

 private:
  std::vector<TraceEvent> ring_;
  std::atomic<std::uint64_t> next_{0};
};

}  // namespace layercast
