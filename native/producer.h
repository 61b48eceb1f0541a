// Rank 0's loop: waits for a free slot, has it filled, publishes it; runs in the caller's thread.
#pragma once

#include <atomic>
#include <vector>

#include "member.h"
#include "pieces.h"

namespace layercast {

class Producer {
 public:
  Producer(Member& member, const TransportOptions& options);

  // Streams one layer; returns when every rank has acknowledged every piece.
  void run(std::uint64_t epoch, std::int64_t layer, std::size_t experts, Writer& writer, Waiter& waiter);

  // Since when the writer has been inside one call; 0 outside. Read by whoever beats for it.
  std::uint64_t writing_since_ns() const { return writing_since_ns_.load(std::memory_order_acquire); }
  std::int64_t writing_expert() const { return writing_expert_.load(std::memory_order_relaxed); }

 private:
  class View;
  void publish(std::size_t piece, std::size_t slot, std::uint64_t epoch);
  bool all_acknowledged(std::size_t slot) const;
  void wait_acknowledged(std::size_t slot, Waiter& waiter, Phase phase);
  void fill(const Cut& cut, std::size_t piece, std::size_t slot, std::int64_t layer, Writer& writer);
  std::size_t slowest(std::size_t slot) const;

  Member& member_;
  const TransportOptions& options_;
  SlotMap slots_;
  std::vector<std::uint64_t> published_;  // per slot
  std::uint64_t sequence_ = 0;
  std::vector<Run> runs_;
  std::atomic<std::uint64_t> writing_since_ns_{0};
  std::atomic<std::int64_t> writing_expert_{-1};
};

}  // namespace layercast
