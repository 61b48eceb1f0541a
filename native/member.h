// This rank in its group: what every wait of it looks at, and how it tells the others of a failure.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "control.h"
#include "options.h"
#include "wait.h"

namespace layercast {

class Member {
 public:
  explicit Member(const TransportOptions& options);

  ControlBlock control;
  const std::size_t rank;
  const Identity self;
  const std::uint64_t generation;
  std::atomic<bool> closing{false};
  std::atomic<std::uint64_t> epoch{0};  // joined here, 0 between layers
  std::atomic<std::int64_t> layer{-1};
  // Throws what ended the group, or this transport.
  void check() const;
  Error cancellation(std::uint64_t its_epoch, std::int64_t its_layer) const;
  // Throws when a rank whose help is needed has closed (T9).
  void check_open(std::size_t peer) const;
  bool broken() const {
    return closing.load(std::memory_order_acquire) || control.poisoned() || superseded() || cancelled();
  }
  // The layer that this rank is in has been given up.
  bool cancelled() const {
    const std::uint64_t joined = epoch.load(std::memory_order_relaxed);
    return joined != 0 && control.cancelled(joined);
  }
  bool superseded() const { return control.generation() != generation; }

  // Poisons with this rank as the cause, unless another was first; completes `error`.
  void fail(Error& error) const;
  void set_phase(Phase phase) const;
  Doorbell bell(Bell which) const {
    return control.has_extension() ? control.bell(rank, which) : Doorbell(&own_bell_[which]);
  }
  void ring_callers() const {
    control.has_extension() ? control.ring_each(kCallerBell) : ring_own(kCallerBell);
  }
  void ring_consumers() const {
    control.has_extension() ? control.ring_each(kConsumerBell) : ring_own(kConsumerBell);
  }
  void ring_everybody() const;
  std::string who(std::size_t peer) const;    // "rank 1 (pid 42)"
  std::string doing(std::size_t peer) const;  // "is alive and was last seen waiting for a free slot"

  // The rank that holds the layer up, as far as the counters tell: the one whose acknowledgements are behind,
  // or rank 0, which has published nothing that others wait for.
  std::size_t laggard() const;

  // Who is waited for in vain, and the story.
  struct Stall {
    std::size_t rank;
    std::string text;
  };
  // The caller's wait. `describe` is asked only when the limit has run out; it returns a Stall.
  template <class Ready, class Describe, class EachLook>
  void wait(Waiter& waiter, std::uint64_t limit_ns, bool foreign, const std::function<bool()>& interrupted,
            Ready&& ready, Describe&& describe, EachLook&& each_look) const {
    Limit limit(limit_ns);
    std::uint64_t look = limit.next_look(now_ns());
    for (;;) {
      if (ready()) return;
      check();
      const std::uint64_t membership = control.membership();
      each_look();
      const std::uint64_t until = foreign ? std::min(look, now_ns() + kForeignPollNs) : look;
      const auto outcome = waiter.wait(bell(kCallerBell), until, [&] {
        return ready() || broken() || control.membership() != membership;
      });
      if (outcome == Waiter::Outcome::kReady) continue;
      const std::uint64_t now = now_ns();
      if (interrupted && (outcome == Waiter::Outcome::kSignal || now >= look) && interrupted())
        throw Interrupted();
      if (now < look) continue;
      if (limit.expired(control.progress())) timed_out(describe(limit.counted_ns()));
      look = limit.next_look(now);
    }
  }

  // Fails the group for a limit that has run out.
  [[noreturn]] void timed_out(Stall stall) const;

 private:
  void ring_own(Bell which) const { Doorbell(&own_bell_[which]).ring(); }

  mutable DoorbellCell own_bell_[kBellsPerRank]{};  // where the region has no extension
};

}  // namespace layercast
