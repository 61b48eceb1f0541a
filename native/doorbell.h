// Sleep until rung. A ringer that finds nobody asleep pays one fence and one load.
//
// Forbidden outcome ("doorbell"): the waiter sleeps although the event happened before it lay down. The
// waiter counts itself in, then looks again; the ringer writes the event, then looks for sleepers;
// sequentially consistent fences lie between on both sides, so one of the two sees the other.
#pragma once

#include <cstdint>
#include <vector>

#include "atomics.h"
#include "clock.h"
#include "layout.h"

namespace layercast {

class Doorbell {
 public:
  // `generation`: of the region that the cell lies in; none: it is initialised only once.
  explicit Doorbell(DoorbellCell* cell = nullptr, const std::uint64_t* generation = nullptr)
      : cell_(cell), generation_(generation) {}

  // After the event was written.
  void ring() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ring_after_fence();
  }

  // For several bells behind one fence.
  void ring_after_fence() const {
    if (sleepers().load(std::memory_order_relaxed) != 0) wake();
  }

  // Rings even if nobody seems asleep: for events that come once.
  void wake() const;

  std::uint32_t prepare() const { return word().load(std::memory_order_acquire); }
  // Returns what `leave` wants to know.
  std::uint64_t enter() const {
    const std::uint64_t entered = generation();
    sleepers().fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return entered;
  }
  // Who lay down before the region was initialised again is not among the sleepers any more: taken off, it
  // would hide one of the new ones.
  void leave(std::uint64_t entered) const {
    if (generation() == entered) sleepers().fetch_sub(1, std::memory_order_relaxed);
  }

  enum class Woken { kRung, kDeadline, kSignal };
  // Sleeps while the word is `seen`, until `deadline_ns` (CLOCK_MONOTONIC).
  Woken sleep(std::uint32_t seen, std::uint64_t deadline_ns) const;

 private:
  std::atomic_ref<std::uint32_t> word() const { return std::atomic_ref<std::uint32_t>(cell_->word); }
  std::atomic_ref<std::uint32_t> sleepers() const { return std::atomic_ref<std::uint32_t>(cell_->sleepers); }

  std::uint64_t generation() const { return generation_ == nullptr ? 0 : load_acquire(*generation_); }

  DoorbellCell* cell_;
  const std::uint64_t* generation_;
};

// How one thread waits: a short spin, yields while yielding is cheap, then sleep. One object per waiting
// thread.
class Waiter {
 public:
  Waiter();

  enum class Outcome { kReady, kDeadline, kSignal };

  // Until `ready()` holds or the deadline passes. `ready` may be called often and must be cheap.
  template <class Ready>
  Outcome wait(const Doorbell& bell, std::uint64_t deadline_ns, Ready&& ready, bool spin_first = true) {
    if (spin_first && worth_spinning() && spin(ready)) {
      vain_ = 0;
      return Outcome::kReady;
    }
    for (;;) {
      const std::uint32_t seen = bell.prepare();
      const std::uint64_t entered = bell.enter();
      if (ready()) {
        bell.leave(entered);
        return Outcome::kReady;
      }
      const Doorbell::Woken woken = bell.sleep(seen, deadline_ns);
      bell.leave(entered);
      ++sleeps_;
      if (ready()) return Outcome::kReady;
      if (woken == Doorbell::Woken::kDeadline) return Outcome::kDeadline;
      if (woken == Doorbell::Woken::kSignal) return Outcome::kSignal;
    }
  }

  std::uint64_t sleeps() const { return sleeps_; }

 private:
  // Who has slept in spite of spinning several times in a row waits for something slow: it sleeps at once,
  // but for a try now and then.
  bool worth_spinning() {
    ++vain_;
    return vain_ <= kVainSpins || vain_ % kRetrySpin == 0;
  }

  template <class Ready>
  bool spin(Ready&& ready) {
    if (crowded_ == 0) {
      for (unsigned i = 0; i < most_spins_; ++i) {
        if (ready()) return true;
        pause();
      }
    } else {
      --crowded_;
    }
    const std::uint64_t start = now_ns();
    if (start < no_yield_until_) return ready();
    for (std::uint64_t before = start; before - start < kYieldBudgetNs;) {
      if (ready()) return true;
      const std::uint64_t after = yield();
      // More threads than cores: whoever we wait for may need this one.
      if (after - before > kCrowdedYieldNs) crowded_ = kCrowdedWaits;
      if (after - before > kDearYieldNs) {
        // Somebody has real work for this core: waiting here costs it and us.
        no_yield_until_ = after + kNoYieldNs;
        break;
      }
      before = after;
    }
    return ready();
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  static std::uint64_t yield();

  static constexpr std::uint64_t kYieldBudgetNs = 50'000;
  static constexpr std::uint64_t kDearYieldNs = 200'000;
  static constexpr std::uint64_t kNoYieldNs = 20'000'000;
  static constexpr std::uint64_t kCrowdedYieldNs = 1'000;
  static constexpr unsigned kCrowdedWaits = 100;
  const unsigned most_spins_;
  static constexpr unsigned kVainSpins = 4;
  static constexpr unsigned kRetrySpin = 64;
  unsigned vain_ = 0;     // waits in a row that ended asleep
  unsigned crowded_ = 0;  // waits to come that do not spin
  std::uint64_t no_yield_until_ = 0;
  std::uint64_t sleeps_ = 0;
};

}  // namespace layercast
