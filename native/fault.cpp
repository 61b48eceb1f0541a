#include "fault.h"

#ifdef LAYERCAST_FAULTS

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "atomics.h"
#include "clock.h"
#include "error.h"

namespace layercast {

namespace {

struct Armed {
  std::string point;
  std::uint64_t nth = 0;
  Fault fault = Fault::kThrow;
  int fd = -1;
  std::uint64_t* when = nullptr;
  std::atomic<std::uint64_t> passed{0};
};

Armed& armed() {
  static Armed one;
  return one;
}

}  // namespace

void arm_fault(std::string point, std::uint64_t nth, Fault fault, int fd, std::uint64_t* when) {
  Armed& a = armed();
  a.nth = nth;
  a.fault = fault;
  a.fd = fd;
  a.when = when;
  a.passed.store(0);
  a.point = std::move(point);
}

std::vector<std::string> fault_points() {
  return {"join.before_epoch",   "join.after_epoch",      "producer.before_fill", "producer.before_publish",
          "producer.published",  "producer.before_done",  "consumer.before_copy", "consumer.copying",
          "consumer.before_ack", "consumer.acknowledged", "wait.entered",         "wait.returned"};
}

void fault_point(const char* name) {
  Armed& a = armed();
  if (a.point != name || a.passed.fetch_add(1) + 1 != a.nth) return;
  store_release(*a.when, now_ns());
  switch (a.fault) {
    case Fault::kKill:
      kill(getpid(), SIGKILL);
      return;
    case Fault::kStop:
      kill(getpid(), SIGSTOP);
      return;
    case Fault::kThrow:
      throw Error(Code::kProtocol, std::string("a fault was injected at ") + name);
    case Fault::kInterrupt:
      kill(getpid(), SIGINT);
      return;
    case Fault::kTell: {
      const char byte = 1;
      [[maybe_unused]] const ssize_t n = write(a.fd, &byte, 1);
      usleep(20'000);
      return;
    }
  }
}

}  // namespace layercast

#endif

#ifdef LAYERCAST_PAUSES

#include <sched.h>
#include <unistd.h>

#include <atomic>

namespace layercast {

namespace {

std::atomic<std::uint32_t>& pauses() {
  static std::atomic<std::uint32_t> one_in{0};
  return one_in;
}

std::uint64_t next_random() {
  static std::atomic<std::uint64_t> seed{0x9e3779b97f4a7c15};
  thread_local std::uint64_t state = seed.fetch_add(0x9e3779b97f4a7c15);
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

}  // namespace

void arm_pauses(std::uint32_t one_in) { pauses().store(one_in); }

void pause_point() {
  const std::uint32_t one_in = pauses().load(std::memory_order_relaxed);
  if (one_in == 0) return;
  const std::uint64_t random = next_random();
  if (random % one_in != 0) return;
  if (random / one_in % 4 == 0) {
    sched_yield();
  } else {
    usleep(static_cast<useconds_t>(random / one_in % 300));
  }
}

}  // namespace layercast

#endif
