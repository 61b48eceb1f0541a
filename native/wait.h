// A wait inside the protocol: ends with success, poison, a peer's end, a limit, close or a signal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "clock.h"
#include "control.h"
#include "doorbell.h"

namespace layercast {

// Time without progress. It is counted in slices: a slice that took longer than asked for (the waiter was
// stopped, the machine suspended) counts as one slice, so time in which the waiter did not run is not held
// against anybody.
class Limit {
 public:
  explicit Limit(std::uint64_t limit_ns)
      : limit_ns_(limit_ns),
        slice_ns_(std::clamp<std::uint64_t>(limit_ns / 8, kMillisecond, 250 * kMillisecond)) {}

  std::uint64_t next_look(std::uint64_t now) const { return add_saturated(now, slice_ns_); }
  // After a slice; true when the limit has run out.
  bool expired(std::uint64_t progress) {
    if (progress != seen_) {
      seen_ = progress;
      counted_ns_ = 0;
      return false;
    }
    counted_ns_ += slice_ns_;
    return limit_ns_ != kNever && counted_ns_ >= limit_ns_;
  }
  std::uint64_t counted_ns() const { return counted_ns_; }

 private:
  std::uint64_t limit_ns_, slice_ns_;
  std::uint64_t counted_ns_ = 0;
  std::uint64_t seen_ = kNever;
};

// What a foreign version-2 rank writes rings no bell.
inline constexpr std::uint64_t kForeignPollNs = 200'000;

}  // namespace layercast
