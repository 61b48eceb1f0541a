#include "consumer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

namespace layercast {

namespace {

// Waits for a device that will finish later than this are slept, not spun.
constexpr std::uint64_t kWorthSleepingNs = 60'000;

}  // namespace

Consumer::Consumer(Member& member, const TransportOptions& options)
    : member_(member),
      options_(options),
      device_(*options.device),
      slots_(options.local_slots, 1, options.kind_bytes.size(), member.control.version() == kVersionExperts),
      destinations_(options.destinations),
      bell_(member.bell(kConsumerBell)),
      taken_(member.control.slots()) {
  device_.on_finished([bell = bell_] { bell.ring(); });
  thread_ = std::thread([this] { loop(); });
}

void Consumer::begin(std::uint64_t epoch, std::int64_t layer, std::size_t experts) {
  epoch_ = epoch;
  layer_ = layer;
  experts_ = experts;
  begun_.fetch_add(1, std::memory_order_release);  // "assignment"
  bell_.ring();
}

void Consumer::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  bell_.wake();
  thread_.join();
  device_.on_finished({});
  device_.drain();
}

void Consumer::loop() {
  pthread_setname_np(pthread_self(), "layercast-copy");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals belong to the caller's threads
  prctl(PR_SET_TIMERSLACK, 1UL);              // a device's due time is meant to the microsecond
  const auto stopped = [this] { return stop_.load(std::memory_order_acquire); };
  while (!stopped()) {
    const auto assigned = [&] {
      return begun_.load(std::memory_order_acquire) != finished_;
    };  // "assignment"
    waiter_.wait(bell_, kNever, [&] { return assigned() || stopped(); });
    if (stopped()) return;
    try {
      load_layer();
    } catch (Error& error) {
      member_.fail(error);
    } catch (const std::exception& other) {
      Error error(Code::kDeviceCopy, other.what());
      member_.fail(error);
    }
    device_.drain();
    in_flight_.clear();
    ++finished_;
  }
}

void Consumer::cut_layer() {
  const bool version2 = member_.control.version() == kVersionExperts;
  const bool whole = version2 || load_relaxed(member_.control.layer_cell().whole_experts) != 0;
  cut_ = Cut(options_.kind_bytes, experts_, version2 ? 1 : options_.piece_bytes, whole);
}

void Consumer::load_layer() {
  const ControlBlock& control = member_.control;
  busy_ns_ = bytes_ = 0;
  cut_ = Cut();  // known with the first piece
  std::size_t submitted = 0, acknowledged = 0;
  for (;;) {
    if (member_.broken() || stop_.load(std::memory_order_acquire)) return;
    // Finished pieces first: every acknowledgement frees a slot for the producer.
    if (!in_flight_.empty() && device_.done(in_flight_.front().ticket)) {
      acknowledge(in_flight_.front());
      in_flight_.pop_front();
      if (++acknowledged == cut_.pieces()) break;
      continue;
    }
    const bool first = cut_.pieces() == 0;
    const bool may_submit = (first || submitted < cut_.pieces()) && in_flight_.size() < control.slots();
    if (may_submit && is_ready(submitted)) {
      submit(submitted++);
      continue;
    }
    wait_for_more(may_submit, submitted);
  }
  const Layout& layout = control.layout();
  store_relaxed(control.cell(layout.h2d_ns, member_.rank), busy_ns_);
  store_relaxed(control.cell(layout.bytes, member_.rank), bytes_);
  store_release(control.cell(layout.consumer_done_epoch, member_.rank), epoch_);  // "consumer done"
  member_.bell(kCallerBell).ring();
}

void Consumer::wait_for_more(bool may_submit, std::size_t piece) {
  const std::uint64_t now = now_ns();
  const std::uint64_t due = in_flight_.empty() ? kNever : device_.due_ns();
  std::uint64_t deadline = due;
  if (may_submit && member_.control.is_foreign(0)) deadline = std::min(deadline, now + kForeignPollNs);
  const bool spin = in_flight_.empty() || due == kNever || due < now + kWorthSleepingNs;
  waiter_.wait(
      bell_, deadline,
      [&] {
        return (may_submit && is_ready(piece)) || stop_.load(std::memory_order_acquire) || member_.broken() ||
               (!in_flight_.empty() &&
                // A copy that has moved has a due time only from then on: the deadline must follow it.
                (device_.done(in_flight_.front().ticket) || device_.due_ns() < due));
      },
      spin);
}

bool Consumer::is_ready(std::size_t piece) {
  const ControlBlock& control = member_.control;
  const std::size_t slot = piece % control.slots();
  const std::uint64_t sequence = load_acquire(control.ready_sequence(slot));  // "ready"
  if (sequence <= taken_[slot]) return false;
  const std::uint64_t epoch = load_relaxed(control.ready_epoch(slot));
  if (epoch < epoch_) return false;  // an earlier layer, from before this transport
  const std::uint64_t number = load_relaxed(control.ready_number(slot));
  if (epoch == epoch_ && number == piece) return true;
  refuse(Code::kProtocol, "rank " + std::to_string(member_.rank) + " expected piece " +
                              std::to_string(piece) + " of epoch " + std::to_string(epoch_) + " in slot " +
                              std::to_string(slot) + ", found piece " + std::to_string(number) +
                              " of epoch " + std::to_string(epoch));
}

void Consumer::submit(std::size_t piece) {
  const std::size_t slot = piece % member_.control.slots();
  if (cut_.pieces() == 0) cut_layer();
  cut_.runs(piece, runs_);
  copies_.clear();
  std::size_t bytes = 0;
  for (const Run& run : runs_) {
    std::byte* to = destinations_[run.kind] + run.expert * options_.kind_bytes[run.kind] + run.offset;
    copies_.push_back({slots_.address(slot, 0, run), to, run.bytes});
    bytes += run.bytes;
  }
  if (in_flight_.empty()) busy_since_ns_ = now_ns();
  taken_[slot] = load_relaxed(member_.control.ready_sequence(slot));
  try {
    in_flight_.push_back({slot, taken_[slot], bytes, device_.enqueue(copies_)});
  } catch (Error& error) {
    error.expert = static_cast<std::int64_t>(runs_.front().expert);
    throw;
  }
}

void Consumer::acknowledge(const InFlight& piece) {
  const ControlBlock& control = member_.control;
  if (in_flight_.size() == 1) busy_ns_ += now_ns() - busy_since_ns_;
  bytes_ += piece.bytes;
  store_release(control.ack(member_.rank, piece.slot), piece.sequence);  // "ack": the slot has been read
  if (control.has_extension()) {
    control.bell(0, kCallerBell).ring();
  } else {
    member_.bell(kCallerBell).ring();
  }
}

}  // namespace layercast
