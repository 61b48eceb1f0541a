// The two claims that every wait rests on, tried many times. Under TSan the first is also a race check.
#include <atomic>
#include <thread>

#include "check.h"
#include "doorbell.h"

using namespace layercast;

namespace {

// "ready": payload, then the announcing store. Forbidden: the sequence is seen, the payload is not.
void message_passing() {
  constexpr int kRounds = 20'000;
  std::uint64_t payload = 0, sequence = 0, acknowledged = 0;
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      while (load_acquire(acknowledged) != i - 1) std::this_thread::yield();
      payload = i * 7;
      store_release(sequence, i);
    }
  });
  for (std::uint64_t i = 1; i <= kRounds; ++i) {
    while (load_acquire(sequence) != i) std::this_thread::yield();
    CHECK(payload == i * 7);
    store_release(acknowledged, i);
  }
  writer.join();
}

// "doorbell": forbidden that both sleep although each has written what the other waits for.
void ping_pong(bool spin) {
  constexpr std::uint64_t kRounds = 3'000;
  DoorbellCell cells[2]{};
  std::uint64_t turns[2] = {0, 0};
  const auto play = [&](int me) {
    Waiter waiter;
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      if (me == 1) {
        waiter.wait(Doorbell(&cells[1]), kNever, [&] { return load_acquire(turns[0]) >= i; }, spin);
      }
      store_release(turns[me], i);
      Doorbell(&cells[1 - me]).ring();
      if (me == 0) {
        waiter.wait(Doorbell(&cells[0]), kNever, [&] { return load_acquire(turns[1]) >= i; }, spin);
      }
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  CHECK(cells[0].sleepers == 0 && cells[1].sleepers == 0);
}

void deadline() {
  DoorbellCell cell{};
  Waiter waiter;
  const std::uint64_t start = now_ns();
  const auto outcome = waiter.wait(Doorbell(&cell), start + 20 * kMillisecond, [] { return false; });
  CHECK(outcome == Waiter::Outcome::kDeadline);
  CHECK(now_ns() - start >= 20 * kMillisecond);
}

}  // namespace

void test_litmus() {
  message_passing();
  ping_pong(true);
  ping_pong(false);
  deadline();
}
