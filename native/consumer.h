// Each rank's loop: takes pieces from the slots in order, keeps the device's queue filled, acknowledges what
// has finished. A thread of its own.
#pragma once

#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "member.h"
#include "pieces.h"

namespace layercast {

class Consumer {
 public:
  Consumer(Member& member, const TransportOptions& options);
  ~Consumer() { stop(); }

  // Hands a joined layer over; at most one at a time.
  void begin(std::uint64_t epoch, std::int64_t layer, std::size_t experts);
  // Ends the thread; no byte moves afterwards. Idempotent.
  void stop();

 private:
  struct InFlight {
    std::size_t slot;
    std::uint64_t sequence;
    std::size_t bytes;
    Ticket ticket;
  };

  void loop();
  void load_layer();
  bool is_ready(std::size_t piece);
  void submit(std::size_t piece);
  void acknowledge(const InFlight& piece);
  void wait_for_more(bool may_submit, std::size_t piece);
  void cut_layer();

  Member& member_;
  const TransportOptions& options_;
  Device& device_;
  SlotMap slots_;
  std::vector<std::byte*> destinations_;
  Waiter waiter_;
  Doorbell bell_;

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> begun_{0};  // layers handed over ("assignment": the three below)
  std::uint64_t epoch_ = 0;
  std::int64_t layer_ = 0;
  std::size_t experts_ = 0;
  std::uint64_t finished_ = 0;

  Cut cut_;
  std::vector<Run> runs_;
  std::vector<Copy> copies_;
  std::vector<std::uint64_t> taken_;  // per slot: the last sequence taken
  std::deque<InFlight> in_flight_;
  std::uint64_t busy_since_ns_ = 0, busy_ns_ = 0, bytes_ = 0;
  std::thread thread_;
};

}  // namespace layercast
