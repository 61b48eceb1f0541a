// Each rank's loop: takes pieces from the slots in order, keeps the device's queue filled, acknowledges what
// has finished. A thread of its own.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "job.h"
#include "member.h"
#include "pieces.h"
#include "trace.h"

namespace layercast {

class Consumer {
 public:
  Consumer(Member& member, const TransportOptions& options, Trace& trace);
  ~Consumer() { stop(); }

  // Hands a joined layer over; at most one at a time.
  void begin(Job job);
  // Nothing of the layers handed over is in work: no byte moves.
  bool idle() const {
    return finished_.load(std::memory_order_acquire) == begun_.load(std::memory_order_relaxed);
  }
  // Where this rank's share of a layer lies, one address per kind, all experts one after the other: for the
  // direct path. Between layers only; empty: no more.
  void set_arena(std::int64_t layer, std::vector<const std::byte*> kinds);
  // Ends the thread; no byte moves afterwards. Idempotent.
  void stop();

  // Of the last layer, for the caller after "consumer done".
  std::uint64_t resident_bytes() const { return resident_bytes_; }
  std::uint64_t pieces() const { return pieces_; }
  bool was_direct() const { return direct_; }

 private:
  struct InFlight {
    std::size_t slot;  // kNoSlot: nothing to acknowledge
    std::uint64_t sequence;
    std::size_t piece, bytes;
    Ticket ticket;
    std::uint64_t start_ns;
  };
  static constexpr std::size_t kNoSlot = SIZE_MAX;

  void loop();
  void load_layer();
  void pass_over();
  bool broken() const { return member_.broken() || stop_.load(std::memory_order_acquire); }
  bool finish_one();
  bool is_ready(std::size_t piece);
  void learn_cut();
  void submit(std::size_t piece);
  void submit_residents();
  void load_direct();
  void complete();
  void plan_direct();
  void check_direct(std::size_t first_copy, std::size_t copies);
  void finished(const InFlight& piece);
  void verify(const InFlight& piece);
  [[noreturn]] void mismatch(std::size_t piece, std::size_t expert, std::uint64_t expected,
                             std::uint64_t seen);
  Ticket awaited() const;
  void wait_for_more(bool may_submit, std::size_t piece);
  std::byte* destination(std::size_t kind, std::size_t expert, std::size_t offset) const {
    const std::size_t layer = job_.device_layer * options_.kind_bytes.size();
    return options_.destinations[layer + kind] + expert * options_.kind_bytes[kind] + offset;
  }

  Member& member_;
  const TransportOptions& options_;
  Trace& trace_;
  Device& device_;
  SlotMap slots_;
  Waiter waiter_;
  Doorbell bell_;

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> begun_{0};  // layers handed over ("assignment": job_)
  Job job_;
  std::atomic<std::uint64_t> finished_{0};

  bool all_submitted_ = false;
  bool polls_ = false;  // rank 0 rings no bells
  bool known_ = false;  // how the layer is cut
  bool direct_ = false;
  Cut cut_;
  std::vector<Run> runs_;
  std::vector<Copy> copies_;
  std::vector<std::uint64_t> taken_;  // per slot: the last sequence taken
  std::deque<InFlight> in_flight_;
  std::uint64_t busy_since_ns_ = 0, busy_ns_ = 0, bytes_ = 0;
  std::uint64_t resident_bytes_ = 0;
  std::size_t pieces_ = 0;
  std::vector<std::byte> scratch_;
  std::map<std::int64_t, std::vector<const std::byte*>> arenas_;
  std::thread thread_;
};

}  // namespace layercast
