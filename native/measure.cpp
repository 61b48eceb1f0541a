#include "measure.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

namespace layercast {

namespace {

constexpr std::size_t kInFlight = 8;
constexpr std::uint64_t kMostNs = 10'000 * kMillisecond;

void await(Device& device, Ticket ticket) {
  const std::uint64_t until = now_ns() + kMostNs;
  while (!device.done(ticket)) {
    if (now_ns() > until) refuse(Code::kTimeout, device.describe() + ": a copy did not finish within 10 s");
    std::this_thread::sleep_for(std::chrono::microseconds(5));
  }
}

}  // namespace

std::uint64_t measure_copies(Device& device, const std::byte* from, std::byte* to, std::size_t bytes,
                             std::size_t piece_bytes, std::size_t rounds) {
  if (piece_bytes == 0 || bytes == 0) refuse(Code::kArgument, "measure: expected bytes to copy, got none");
  std::deque<Ticket> in_flight;
  const std::uint64_t start = now_ns();
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t at = 0; at < bytes; at += piece_bytes) {
      const Copy copy{from + at, to + at, std::min(piece_bytes, bytes - at)};
      if (in_flight.size() == kInFlight) {
        await(device, in_flight.front());
        in_flight.pop_front();
      }
      in_flight.push_back(device.enqueue({&copy, 1}));
    }
  }
  if (!in_flight.empty()) await(device, in_flight.back());
  return now_ns() - start;
}

}  // namespace layercast
