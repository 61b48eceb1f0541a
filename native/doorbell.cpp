#include "doorbell.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace layercast {

namespace {

long futex(std::uint32_t* word, int operation, std::uint32_t value, const timespec* until) {
  return syscall(SYS_futex, word, operation, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

void Doorbell::wake() const {
  word().fetch_add(1, std::memory_order_release);
  futex(&cell_->word, FUTEX_WAKE, INT_MAX, nullptr);
}

Doorbell::Woken Doorbell::sleep(std::uint32_t seen, std::uint64_t deadline_ns) const {
  timespec until;
  until.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000u);
  until.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000u);
  // The bitset form takes an absolute CLOCK_MONOTONIC time: no drift when a signal restarts the wait.
  const bool forever = deadline_ns == kNever;
  if (futex(&cell_->word, FUTEX_WAIT_BITSET, seen, forever ? nullptr : &until) == 0) return Woken::kRung;
  if (errno == ETIMEDOUT) return Woken::kDeadline;
  if (errno == EINTR) return Woken::kSignal;
  return Woken::kRung;  // EAGAIN: rung between the look and the sleep
}

// On one core nobody can answer while we spin.
Waiter::Waiter() : most_spins_(usable_cores() > 1 ? 1000 : 0) {}

std::uint64_t Waiter::yield() {
  sched_yield();
  return now_ns();
}

}  // namespace layercast
