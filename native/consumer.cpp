#include "consumer.h"

#include <sys/prctl.h>

#include "checksum.h"
#include "fault.h"
#include "threads.h"

namespace layercast {

namespace {

// Waits for a device that will finish later than this are slept, not spun.
constexpr std::uint64_t kWorthSleepingNs = 60'000;
// The direct path: enough for a bus to stay busy, little enough for a failure to be heard in between.
constexpr std::size_t kDirectBytes = 4 << 20;
constexpr std::size_t kDirectInFlight = 8;

}  // namespace

Consumer::Consumer(Member& member, const TransportOptions& options, Trace& trace)
    : member_(member),
      options_(options),
      trace_(trace),
      device_(*options.device),
      slots_(options.local_slots, 1, options.kind_bytes.size(), member.control.version() == kVersionExperts),
      bell_(member.bell(kConsumerBell)),
      taken_(member.control.slots()) {
  device_.on_finished([bell = bell_] { bell.ring(); });
  thread_ = std::thread([this] { loop(); });
}

void Consumer::begin(Job job) {
  job_ = std::move(job);
  job_.mark = device_.begin_layer();
  begun_.fetch_add(1, std::memory_order_release);  // "assignment"
  bell_.ring();
}

void Consumer::set_arena(std::int64_t layer, std::vector<const std::byte*> kinds) {
  if (kinds.empty()) {
    arenas_.erase(layer);
  } else {
    arenas_[layer] = std::move(kinds);
  }
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
  name_thread("layercast-copy", options_.cpus);
  prctl(PR_SET_TIMERSLACK, 1UL);  // a device's due time is meant to the microsecond
  const auto stopped = [this] { return stop_.load(std::memory_order_acquire); };
  while (!stopped()) {
    const auto assigned = [&] {
      return begun_.load(std::memory_order_acquire) != finished_.load(std::memory_order_relaxed);
    };  // "assignment"
    waiter_.wait(bell_, kNever, [&] { return assigned() || stopped(); });
    if (stopped()) return;
    const std::uint32_t mark = job_.mark;  // the next job may come before this one is cleared away
    try {
      load_layer();
    } catch (Error& error) {
      member_.fail(error);
    } catch (const std::exception& other) {
      Error error(Code::kDeviceCopy, other.what());
      member_.fail(error);
    }
    device_.drain();
    device_.end_layer(mark);
    in_flight_.clear();
    finished_.fetch_add(1, std::memory_order_release);
    member_.bell(kCallerBell).ring();
  }
}

// Pieces of a layer that was given up: nobody wants them, but rank 0 waits for their slots.
void Consumer::pass_over() {
  const ControlBlock& control = member_.control;
  bool any = false;
  for (std::size_t slot = 0; slot < control.slots(); ++slot) {
    const std::uint64_t sequence = load_acquire(control.ready_sequence(slot));
    if (load_relaxed(control.ready_epoch(slot)) >= job_.epoch) continue;
    taken_[slot] = sequence;
    if (load_relaxed(control.ack(member_.rank, slot)) >= sequence) continue;  // it may have been taken only
    store_release(control.ack(member_.rank, slot), sequence);
    any = true;
  }
  if (any && control.has_extension()) control.bell(0, kCallerBell).ring();
}

void Consumer::load_layer() {
  const ControlBlock& control = member_.control;
  busy_ns_ = bytes_ = resident_bytes_ = pieces_ = 0;
  known_ = direct_ = false;
  polls_ = control.is_foreign(0);  // once: rank 0 writes to that line while it works
  pass_over();
  submit_residents();
  std::size_t submitted = 0;
  const bool nothing = job_.streamed == 0;  // after complete() the caller may hand the next job over
  if (nothing) device_.mark_layer(job_.mark);
  for (all_submitted_ = nothing; !all_submitted_ || !in_flight_.empty();) {
    if (broken()) return;
    // Finished pieces first: every acknowledgement frees a slot for the producer.
    if (finish_one()) continue;
    const bool may_submit = !all_submitted_ && in_flight_.size() < control.slots();
    if (may_submit && is_ready(submitted)) {
      if (!known_) learn_cut();
      if (direct_) return load_direct();
      submit(submitted++);
      all_submitted_ = submitted == cut_.pieces();
      if (all_submitted_) device_.mark_layer(job_.mark);
      continue;
    }
    wait_for_more(may_submit, submitted);
  }
  if (nothing) complete();
}

// Before the last acknowledgement: when rank 0 has them all, every rank's layer is complete, and whatever
// fails or closes after that is another matter.
void Consumer::complete() {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  store_relaxed(control.cell(layout.h2d_ns, member_.rank), busy_ns_);
  store_relaxed(control.cell(layout.bytes, member_.rank), bytes_);
  store_release(control.cell(layout.consumer_done_epoch, member_.rank), job_.epoch);  // "consumer done"
}

// Settles the oldest copy in flight, if it has finished.
bool Consumer::finish_one() {
  if (in_flight_.empty() || !device_.done(in_flight_.front().ticket)) return false;
  finished(in_flight_.front());
  in_flight_.pop_front();
  return true;
}

void Consumer::learn_cut() {
  const bool version2 = member_.control.version() == kVersionExperts;
  const LayerCell* cell = version2 ? nullptr : &member_.control.layer_cell();
  direct_ = cell != nullptr && load_relaxed(cell->direct) != 0;
  const bool whole = version2 || load_relaxed(cell->whole_experts) != 0;
  cut_ = Cut(options_.kind_bytes, job_.streamed, version2 ? 1 : options_.piece_bytes, whole,
             version2 ? 0 : load_relaxed(cell->paired));
  pieces_ = direct_ ? 0 : cut_.pieces();
  known_ = true;
}

// Half of what is in flight may finish before anybody looks: the other half keeps the bus busy meanwhile, and
// waking for each piece would cost more than the piece. At the end of a layer nobody needs less than all of
// it.
Ticket Consumer::awaited() const {
  const Ticket most = in_flight_[all_submitted_ ? in_flight_.size() - 1 : in_flight_.size() / 2].ticket;
  return device_.due_ns(most) != kNever ? most : in_flight_.front().ticket;
}

void Consumer::wait_for_more(bool may_submit, std::size_t piece) {
  const std::uint64_t now = now_ns();
  const bool flying = !in_flight_.empty();
  const Ticket ticket = flying ? awaited() : 0;
  const std::uint64_t due = flying ? device_.due_ns(ticket) : kNever;
  std::uint64_t deadline = due;
  if (may_submit && polls_) deadline = std::min(deadline, now + kForeignPollNs);
  const bool spin = !flying || due == kNever || due < now + kWorthSleepingNs;
  if (flying) device_.ring_when_done(ticket);
  waiter_.wait(
      bell_, deadline,
      [&] {
        return (may_submit && is_ready(piece)) || broken() ||
               // A copy that has moved has a due time only from then on: the deadline must follow it.
               (flying && (device_.done(ticket) || device_.due_ns(ticket) < due));
      },
      spin);
  if (may_submit && trace_.on()) trace_.add(Doing::kPieceWait, now, now_ns(), job_.epoch, piece);
}

bool Consumer::is_ready(std::size_t piece) {
  const ControlBlock& control = member_.control;
  const std::size_t slot = piece % control.slots();
  const std::uint64_t sequence = load_acquire(control.ready_sequence(slot));  // "ready"
  if (sequence <= taken_[slot]) return false;
  const std::uint64_t epoch = load_relaxed(control.ready_epoch(slot));
  if (epoch < job_.epoch) return false;  // an earlier layer, from before this transport
  const std::uint64_t number = load_relaxed(control.ready_number(slot));
  if (epoch == job_.epoch && number == piece) return true;
  refuse(Code::kProtocol, "rank " + std::to_string(member_.rank) + " expected piece " +
                              std::to_string(piece) + " of epoch " + std::to_string(job_.epoch) +
                              " in slot " + std::to_string(slot) + ", found piece " + std::to_string(number) +
                              " of epoch " + std::to_string(epoch));
}

void Consumer::submit(std::size_t piece) {
  const std::size_t slot = piece % member_.control.slots();
  cut_.runs(piece, runs_);
  copies_.clear();
  std::size_t bytes = 0;
  for (const Run& run : runs_) {
    if (run.expert >= job_.owned) continue;
    copies_.push_back({slots_.address(slot, 0, run),
                       destination(run.kind, job_.expert(run.expert), run.offset), run.bytes});
    bytes += run.bytes;
  }
  const std::uint64_t now = now_ns();
  if (in_flight_.empty()) busy_since_ns_ = now;
  taken_[slot] = load_relaxed(member_.control.ready_sequence(slot));
  LAYERCAST_FAULT_POINT("consumer.before_copy");
  try {
    in_flight_.push_back({slot, taken_[slot], piece, bytes, device_.enqueue(copies_), now});
  } catch (Error& error) {
    error.expert = static_cast<std::int64_t>(job_.expert(runs_.front().expert));
    throw;
  }
  LAYERCAST_FAULT_POINT("consumer.copying");
}

void Consumer::submit_residents() {
  copies_.clear();
  for (const Resident& resident : job_.residents) {
    for (std::size_t k = 0; k < resident.addresses.size(); ++k) {
      copies_.push_back({resident.addresses[k], destination(k, resident.expert, 0), options_.kind_bytes[k]});
      resident_bytes_ += options_.kind_bytes[k];
    }
  }
  if (copies_.empty()) return;
  busy_since_ns_ = now_ns();
  in_flight_.push_back({kNoSlot, 0, 0, 0, device_.enqueue_local(copies_), busy_since_ns_});
}

void Consumer::finished(const InFlight& piece) {
  const ControlBlock& control = member_.control;
  const std::uint64_t now = trace_.on() || in_flight_.size() == 1 ? now_ns() : 0;
  if (in_flight_.size() == 1) busy_ns_ += now - busy_since_ns_;
  bytes_ += piece.bytes;
  trace_.add(Doing::kCopying, piece.start_ns, now, job_.epoch, piece.piece);
  if (piece.slot == kNoSlot) return;
  if (options_.verify_every != 0 && piece.piece % options_.verify_every == 0) verify(piece);
  LAYERCAST_FAULT_POINT("consumer.before_ack");
  if (all_submitted_ && in_flight_.size() == 1) complete();
  store_release(control.ack(member_.rank, piece.slot), piece.sequence);  // "ack": the slot has been read
  LAYERCAST_FAULT_POINT("consumer.acknowledged");
  if (!control.has_extension()) return member_.bell(kCallerBell).ring();
  // Rank 0 waits for all: whoever acknowledges last rings. Forbidden outcome ("last ack"): two ranks each
  // miss the other's, and nobody rings; the fences lie between each one's store and its look.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    if (load_relaxed(control.ack(r, piece.slot)) < piece.sequence) return;
  }
  control.bell(0, kCallerBell).ring_after_fence();
}

// What rank 0 wrote into the slot is what lies on the device now.
void Consumer::verify(const InFlight& piece) {
  cut_.runs(piece.piece, runs_);
  PieceChecksum sum;
  for (const Run& run : runs_) {
    if (run.expert >= job_.owned) continue;
    const std::byte* there = destination(run.kind, job_.expert(run.expert), run.offset);
    sum.add(device_.read(there, run.bytes, scratch_), run.bytes);
  }
  const std::uint64_t expected = load_relaxed(member_.control.checksum(piece.slot, member_.rank));
  if (sum.value() != expected) {
    mismatch(piece.piece, job_.expert(runs_.front().expert), expected, sum.value());
  }
}

void Consumer::mismatch(std::size_t piece, std::size_t expert, std::uint64_t expected, std::uint64_t seen) {
  Error error(Code::kChecksum, "rank " + std::to_string(member_.rank) + ": piece " + std::to_string(piece) +
                                   " of layer " + std::to_string(job_.layer) + " (from expert " +
                                   std::to_string(expert) + " on) arrived with checksum " +
                                   std::to_string(seen) + ", rank 0 wrote " + std::to_string(expected));
  error.expert = static_cast<std::int64_t>(expert);
  throw error;
}

// All copies of the layer, straight from the arena: experts that lie next to each other are one.
void Consumer::plan_direct() {
  const auto found = arenas_.find(job_.layer);
  if (found == arenas_.end()) {
    refuse(Code::kProtocol, "rank " + std::to_string(member_.rank) + " has no arena that holds layer " +
                                std::to_string(job_.layer) + "; rank 0 has");
  }
  copies_.clear();
  const std::size_t experts = std::min(job_.streamed, job_.owned);
  for (std::size_t k = 0; k < options_.kind_bytes.size(); ++k) {
    const std::size_t each = options_.kind_bytes[k];
    for (std::size_t from = 0, to; from < experts; from = to) {
      to = from + 1;
      while (to < experts && job_.expert(to) == job_.expert(to - 1) + 1) ++to;
      const std::size_t first = job_.expert(from);
      const std::size_t bytes = (to - from) * each;
      for (std::size_t at = 0; at < bytes; at += kDirectBytes) {
        copies_.push_back({found->second[k] + first * each + at, destination(k, first, at),
                           std::min(kDirectBytes, bytes - at)});
      }
    }
  }
}

void Consumer::load_direct() {
  const ControlBlock& control = member_.control;
  plan_direct();
  struct Batch {
    std::size_t first, count, bytes;
  };
  std::deque<Batch> batches;
  std::size_t next = 0;
  for (std::size_t& number = pieces_; next < copies_.size() || !in_flight_.empty();) {
    if (broken()) return;
    if (!in_flight_.empty() && device_.done(in_flight_.front().ticket)) {
      if (in_flight_.front().bytes != 0) {
        const Batch batch = batches.front();
        batches.pop_front();
        if (options_.verify_every != 0 && in_flight_.front().piece % options_.verify_every == 0) {
          check_direct(batch.first, batch.count);
        }
      }
      finish_one();
      store_relaxed(control.cell(control.layout().bytes, member_.rank), bytes_);  // progress, for the limits
      continue;
    }
    if (next < copies_.size() && in_flight_.size() < kDirectInFlight) {
      Batch batch{next, 0, 0};
      for (; next < copies_.size() && batch.bytes + copies_[next].bytes <= kDirectBytes; ++next) {
        batch.bytes += copies_[next].bytes;
        ++batch.count;
      }
      const std::uint64_t now = now_ns();
      if (in_flight_.empty()) busy_since_ns_ = now;
      const Ticket ticket = device_.enqueue({&copies_[batch.first], batch.count});
      in_flight_.push_back({kNoSlot, 0, number++, batch.bytes, ticket, now});
      batches.push_back(batch);
      if (next == copies_.size()) device_.mark_layer(job_.mark);
      continue;
    }
    wait_for_more(false, 0);
  }
  // The token that stands for the layer: rank 0 waits for it as for a piece.
  const std::uint64_t sequence = load_relaxed(control.ready_sequence(0));
  taken_[0] = sequence;
  complete();
  store_release(control.ack(member_.rank, 0), sequence);
  if (control.has_extension()) control.bell(0, kCallerBell).ring();
}

void Consumer::check_direct(std::size_t first_copy, std::size_t copies) {
  for (std::size_t i = first_copy; i < first_copy + copies; ++i) {
    const Copy& copy = copies_[i];
    const std::uint64_t expected = checksum(copy.from, copy.bytes);
    const std::uint64_t seen = checksum(device_.read(copy.to, copy.bytes, scratch_), copy.bytes);
    if (seen == expected) continue;
    std::size_t kind = 0;
    while (copy.to < destination(kind, 0, 0) || copy.to >= destination(kind, options_.experts, 0)) ++kind;
    const auto offset = static_cast<std::size_t>(copy.to - destination(kind, 0, 0));
    mismatch(in_flight_.front().piece, offset / options_.kind_bytes[kind], expected, seen);
  }
}

}  // namespace layercast
