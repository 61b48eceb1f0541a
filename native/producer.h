// Rank 0's loop: waits for a free slot, has it filled, publishes it. It runs in the caller's thread; writers
// that allow it get more threads, each with a piece of its own, and pieces are published in their order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "job.h"
#include "member.h"
#include "pieces.h"
#include "trace.h"

namespace layercast {

class Producer {
 public:
  Producer(Member& member, const TransportOptions& options, Trace& trace);
  ~Producer();

  // Streams one layer; returns when every rank has acknowledged every piece.
  void run(const Job& job, Writer& writer, Waiter& waiter);

  // Since when the longest running call of the writer has lasted; 0 outside. For whoever beats for it.
  std::uint64_t writing_since_ns() const;
  std::int64_t writing_expert() const;

 private:
  class View;
  // What a thread that fills slots has for itself.
  struct Worker {
    std::size_t number = 0;
    Waiter waiter;
    std::vector<Run> runs;
    std::atomic<std::uint64_t> writing_since_ns{0};
    std::atomic<std::int64_t> writing_expert{-1};
    std::uint64_t writer_ns = 0, wait_ns = 0;
    std::thread thread;  // none for the caller's
  };

  void publish(std::size_t piece, std::size_t slot);
  bool all_acknowledged(std::size_t slot) const;
  bool is_free(std::size_t piece) const;
  void wait_free(std::size_t piece, Waiter& waiter, const std::function<bool()>& interrupted, Phase phase);
  std::size_t slowest(std::size_t slot) const;
  void fill(Worker& worker, std::size_t piece, std::size_t slot);
  void filled(std::size_t piece);
  void work(Worker& worker, Waiter& waiter, const std::function<bool()>& interrupted);
  bool is_verified(std::size_t piece) const;
  void record_checksums(const Worker& worker, std::size_t slot);
  void hire();
  void serve(Worker& worker);
  void failed();
  void wait_crew();

  Member& member_;
  const TransportOptions& options_;
  Trace& trace_;
  SlotMap slots_;
  std::vector<std::uint64_t> published_;  // per slot
  std::uint64_t sequence_ = 0;

  // The layer in work.
  const Job* job_ = nullptr;
  Writer* writer_ = nullptr;
  Cut cut_;
  bool crew_ = false;
  std::atomic<std::size_t> next_{0};  // the first piece that nobody has taken
  std::atomic<std::size_t> head_{0};  // pieces published; everything before it is in `published_`
  std::atomic<bool> stop_{false};     // a worker failed

  std::vector<std::unique_ptr<Worker>> workers_;  // the first is the caller
  std::mutex mutex_;                              // of the five below
  std::condition_variable work_, idle_;
  std::vector<char> filled_;  // per slot: filled, not published
  std::exception_ptr failure_;
  std::uint64_t shift_ = 0;  // layers that the crew was called for
  std::size_t busy_ = 0;
  bool dismissed_ = false;
};

}  // namespace layercast
