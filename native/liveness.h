// Who is alive: a thread that sleeps in poll() on every peer's pidfd, and beats for a working writer.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "member.h"
#include "producer.h"

namespace layercast {

class Liveness {
 public:
  // `producer` is null on other ranks than 0.
  Liveness(Member& member, const TransportOptions& options, const Producer* producer);
  ~Liveness() { stop(); }

  // Peers may have come: look again. Callable from any thread.
  void look() const;
  void stop();

  // For peers that the kernel does not show us (another pid namespace), whoever holds a socket to them
  // reports.
  // `started`: what tells it from other processes of the same number.
  void report_death(std::size_t rank, std::uint64_t pid, std::uint64_t started, const char* how) const;

 private:
  struct Watched {
    std::uint64_t pid = 0, started = 0;
    bool operator==(const Watched&) const = default;
  };
  void loop();
  void watch_newcomers();
  int next_timeout_ms() const;
  void beat();

  Member& member_;
  const TransportOptions& options_;
  const Producer* producer_;
  int wake_fd_;
  std::vector<int> pidfds_;       // per rank; -1: not watched
  std::vector<Watched> watched_;  // per rank: the process behind it
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace layercast
