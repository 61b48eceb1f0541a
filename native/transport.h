// join, run, wait, close for one rank: order of calls, checks, and the life of the threads behind them.
#pragma once

#include <sys/types.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "consumer.h"
#include "liveness.h"
#include "member.h"
#include "options.h"
#include "producer.h"
#include "writer.h"

namespace layercast {

struct Statistics {
  std::uint64_t epoch = 0;
  std::int64_t layer = -1;
  std::uint64_t experts = 0;
  std::uint64_t rank = 0;
  std::uint64_t writer_ns = 0, slot_wait_ns = 0, total_ns = 0;  // rank 0's
  std::uint64_t h2d_ns = 0, bytes = 0;                          // this rank's
  std::uint64_t pieces = 0, resident_bytes = 0;                 // this rank's
  bool direct = false;
  std::uint64_t pinned_bytes = 0, unpinned_bytes = 0;  // host memory of this rank's device
};

class Transport {
 public:
  static constexpr std::uint64_t kMaxEpoch = (1ull << 63) - 1;

  // Returns when the consumer works. Needs no peer.
  explicit Transport(TransportOptions options);
  ~Transport() { close(); }
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  void join(Job job);
  void run(std::uint64_t epoch, std::int64_t layer, std::uint64_t experts, Writer& writer);
  Statistics wait(std::uint64_t epoch);
  // Makes a stream of the device wait for the layer joined last, and nobody on the host. From any thread. The
  // stream goes on if the layer fails, too: wait tells.
  void stream_wait(std::uint64_t epoch, std::uintptr_t stream);
  // Layers joined from now on are copied when the work enqueued on the stream so far has finished.
  void consumed(std::uintptr_t stream);
  // Gives a layer up, from any thread and any rank: run and wait of it end with Error(kCancelled) everywhere.
  // False: it is over already.
  bool cancel(std::uint64_t epoch);
  // Where this rank's share of a layer lies in host memory; see Consumer::set_arena. Between layers.
  void set_arena(std::int64_t layer, std::vector<const std::byte*> kinds);
  std::vector<TraceEvent> trace() const { return trace_.events(); }
  // Never throws; a second call waits for the first. During a layer it poisons the group.
  void close() noexcept;

  void report_death(std::size_t rank, std::uint64_t pid, std::uint64_t started, const char* how) const;
  // Who waits for a layer, but not inside join, has waited this long: fails the group, naming the rank that
  // has not joined; returns where all have, as the layer's own limit runs then.
  void overdue(std::uint64_t epoch, std::uint64_t waited_ms) const;
  // Tells every rank of a failure on this one that the core did not see.
  void fail(Error error);
  // Of the layer in progress or the last one.
  Statistics statistics() const;
  const TransportOptions& options() const { return options_; }
  bool closed() const { return closed_; }
  bool failed() const { return member_.control.poisoned() || member_.superseded(); }
  // (rank, pid, start time) of the processes that are or were here.
  std::vector<std::array<std::uint64_t, 3>> seats() const;
  std::uint64_t last_epoch() const;

 private:
  class Call;
  void check_owner() const;
  void place(Job& job) const;
  void check_epoch(std::uint64_t epoch) const;
  void check_job(const Job& job) const;
  void attach();
  void detach();
  void lead(const Job& job);
  void follow(const Job& job);
  void compare_jobs(const Job& job);
  void publish(const Job& job, bool given_up);
  [[noreturn]] void refuse_other(std::uint64_t epoch, std::uint64_t seen);
  void give_up(const Error& cancellation);
  [[noreturn]] void interrupted();
  void settle_given_up();
  std::uint64_t left_behind() const;
  void returned(std::uint64_t epoch);
  void wait_all_returned();
  void join_wait(const std::function<bool()>& ready, const std::function<Member::Stall()>& missing,
                 const std::function<void()>& each_look);

  TransportOptions options_;
  const pid_t owner_;
  Member member_;
  Trace trace_;
  Waiter waiter_;
  std::unique_ptr<Producer> producer_;
  std::unique_ptr<Consumer> consumer_;
  std::unique_ptr<Liveness> liveness_;

  std::mutex mutex_;  // of the four below
  std::condition_variable idle_;
  bool in_call_ = false;
  bool closing_ = false;
  bool closed_ = false;
  std::uint64_t call_thread_ = 0;

  std::atomic<std::uint64_t> joined_{0}, returned_{0};  // close() looks from other threads
  std::uint64_t ran_ = 0;
  Job job_;
  std::optional<Error> cancellation_;  // of the last joined layer, where it was given up
  Statistics last_;
};

// Checks everything that can be checked before anything starts; each failure names the argument.
void check_options(const TransportOptions& options, const ControlBlock& control);

}  // namespace layercast
