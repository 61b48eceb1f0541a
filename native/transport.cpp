#include "transport.h"

#include <pthread.h>
#include <unistd.h>

#include "fault.h"

namespace layercast {

namespace {

std::string text(std::uint64_t value) { return std::to_string(value); }

}  // namespace

// One call at a time, and close() can wait for its end.
class Transport::Call {
 public:
  explicit Call(Transport& transport) : transport_(transport) {
    transport.check_owner();
    const std::lock_guard lock(transport.mutex_);
    if (transport.closing_) {
      if (transport.closed_) refuse(Code::kState, "this transport is closed; open a new one");
      transport.member_.check();
    }
    if (transport.in_call_) refuse(Code::kState, "another thread is inside a call of this transport");
    transport.in_call_ = true;
    transport.call_thread_ = pthread_self();
  }
  ~Call() {
    transport_.member_.set_phase(Phase::kIdle);
    const std::lock_guard lock(transport_.mutex_);
    transport_.in_call_ = false;
    transport_.idle_.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Transport& transport_;
};

Transport::Transport(TransportOptions options)
    : options_(std::move(options)), owner_(getpid()), member_(options_), trace_(options_.trace_events) {
  check_options(options_, member_.control);
  if (member_.control.poisoned()) member_.check();
  const bool allocates = options_.destinations.empty();
  for (std::size_t layer = 0; layer < options_.device_layers; ++layer) {
    for (std::size_t k = 0; k < options_.kind_bytes.size(); ++k) {
      const std::size_t bytes = options_.kind_bytes[k] * options_.experts;
      if (allocates) {
        options_.destinations.push_back(options_.device->allocate(bytes));
      } else {
        options_.device->adopt(options_.destinations[layer * options_.kind_bytes.size() + k], bytes);
      }
    }
  }
  attach();
  try {
    if (options_.rank == 0) producer_ = std::make_unique<Producer>(member_, options_, trace_);
    consumer_ = std::make_unique<Consumer>(member_, options_, trace_);
    liveness_ = std::make_unique<Liveness>(member_, options_, producer_.get());
  } catch (...) {
    consumer_.reset();
    detach();
    throw;
  }
}

void Transport::check_owner() const {
  if (getpid() != owner_) {
    refuse(Code::kForked, "this transport belongs to pid " + text(static_cast<std::uint64_t>(owner_)) +
                              ", which forked; create it after fork");
  }
}

std::uint64_t Transport::last_epoch() const {
  return load_acquire(member_.control.cell(member_.control.layout().active_epoch));
}

void Transport::join(Job job) {
  const Call call(*this);
  check_job(job);
  const std::uint64_t epoch = job.epoch;
  place(job);
  if (joined_ != returned_) settle_given_up();  // nobody waited for it any more
  member_.check();
  if (joined_ != returned_) {
    refuse(Code::kState, "join(" + text(epoch) + "): epoch " + text(joined_) +
                             " has not been waited for on rank " + text(options_.rank));
  }
  const std::uint64_t newest =
      std::max({joined_.load(), left_behind(), options_.rank == 0 ? last_epoch() : 0});
  if (epoch <= newest) {
    refuse(Code::kArgument,
           "epoch: expected more than " + text(newest) + ", the last one of this group, got " + text(epoch));
  }
  member_.set_phase(Phase::kJoining);
  LAYERCAST_FAULT_POINT("join.before_epoch");
  if (member_.control.has_extension()) {
    PeerCell& own = member_.control.peer(options_.rank);
    std::atomic_ref<std::int64_t>(own.layer).store(job.layer, std::memory_order_relaxed);
    store_relaxed(own.expert_count, job.streamed);
  }
  if (options_.rank == 0) {
    lead(job);
  } else {
    follow(job);
  }
  LAYERCAST_FAULT_POINT("join.after_epoch");
  joined_ = epoch;
  cancellation_.reset();
  job_ = job;
  member_.layer.store(job.layer);
  member_.epoch.store(epoch);
  consumer_->begin(std::move(job));
  store_release(member_.control.cell(member_.control.layout().join_epoch, options_.rank), epoch);
  if (member_.control.has_extension()) member_.control.bell(0, kCallerBell).ring();
}

// Where ranks own whole experts: how many this one has.
void Transport::place(Job& job) const {
  if (job.owners.empty()) return;
  if (job.selected || !job.residents.empty()) {
    refuse(Code::kArgument,
           "placement: whole experts per rank travel all; selected or resident ones do not go with it");
  }
  std::size_t most = 0, known = 0;
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    known += job.owned_by(r);
    most = std::max(most, job.owned_by(r));
  }
  if (known != job.owners.size() || most != job.streamed) {
    refuse(Code::kArgument, "placement: its " + text(job.owners.size()) + " experts take " + text(most) +
                                " positions on ranks 0 to " + text(options_.tp_size - 1) + ", which own " +
                                text(known) + "; join was given " + text(job.streamed) + " positions");
  }
  job.owned = job.owned_by(options_.rank);
}

bool Transport::cancel(std::uint64_t epoch) {
  check_owner();
  check_epoch(epoch);
  const std::lock_guard lock(mutex_);  // close() comes before or after
  if (closing_) refuse(Code::kState, "this transport is closed; open a new one");
  const ControlBlock& control = member_.control;
  // In version 3 every rank is this library's; one without identity has only not come yet.
  const bool version2 = control.version() == kVersionExperts;
  if (!control.has_extension() || (version2 && control.any_foreign())) {
    refuse(Code::kState, "cancel(" + text(epoch) + "): not every rank of this group understands it");
  }
  if (control.poisoned()) member_.check();
  if (last_epoch() < epoch) {
    if (!control.wish(options_.rank, epoch)) {
      refuse(Code::kState, "cancel(" + text(epoch) + "): this rank has given up " + text(kWishes) +
                               " layers ahead of rank 0, which is in epoch " + text(last_epoch()));
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);  // "cancel wish"
    LAYERCAST_PAUSE_POINT();
    if (last_epoch() < epoch) return true;  // rank 0 will find the wish when it publishes the layer
  }
  return control.cancel_layer(epoch, options_.rank) || control.cancelled(epoch);
}

void Transport::set_arena(std::int64_t layer, std::vector<const std::byte*> kinds) {
  const Call call(*this);
  if (!kinds.empty() && kinds.size() != options_.kind_bytes.size()) {
    refuse(Code::kArgument, "arena: expected " + text(options_.kind_bytes.size()) +
                                " addresses, one per kind, got " + text(kinds.size()));
  }
  if (joined_ != returned_) refuse(Code::kState, "arena: a layer is in progress; wait for it first");
  consumer_->set_arena(layer, std::move(kinds));
}

void Transport::run(std::uint64_t epoch, std::int64_t layer, std::uint64_t experts, Writer& writer) {
  const Call call(*this);
  if (options_.rank != 0) {
    refuse(Code::kState, "run is rank 0's call; this is rank " + text(options_.rank));
  }
  check_epoch(epoch);
  if (epoch != joined_ || epoch == returned_) {
    member_.check();
    refuse(Code::kState,
           "run(" + text(epoch) + "): rank 0 must join this epoch first; it joined " + text(joined_));
  }
  if (ran_ == epoch) refuse(Code::kState, "run(" + text(epoch) + "): this epoch has been run already");
  if (layer != job_.layer || experts != job_.streamed) {
    refuse(Code::kArgument, "run(" + text(epoch) + "): joined layer " + std::to_string(job_.layer) +
                                " with " + text(job_.streamed) + " experts, run was given layer " +
                                std::to_string(layer) + " with " + text(experts));
  }
  if (job_.streamed != 0) writer.check(layer, job_.needed(), options_.tp_size, options_.kind_bytes);
  for (std::size_t r = 0; !job_.owners.empty() && r < options_.tp_size; ++r) {
    const std::size_t owned = job_.owned_by(r);
    for (std::size_t position = 0; position < owned; ++position) {
      if (!writer.owns(r, position)) {
        refuse(Code::kArgument, "run(" + text(epoch) + "): the writer has nothing for rank " + text(r) +
                                    "'s position " + text(position) + "; was it made for another placement?");
      }
    }
  }
  try {
    member_.check();
    ran_ = epoch;
    producer_->run(job_, writer, waiter_);
  } catch (Error& error) {
    if (error.code == Code::kCancelled && error.from_group) give_up(error);
    if (error.from_group) throw;
    if (member_.closing.load() && error.code == Code::kState) throw;
    member_.fail(error);
    throw;
  } catch (const std::exception& other) {
    Error error(Code::kWriter, other.what());
    member_.fail(error);
    throw;
  }
}

// The joined layer was cancelled: it ends here when nothing of it moves any more. A device that does not come
// to an end has the limit of a layer.
void Transport::give_up(const Error& cancellation) {
  const Doorbell bell = member_.bell(kCallerBell);
  Limit limit(options_.layer_limit_ns);
  std::uint64_t look = limit.next_look(now_ns());
  while (!consumer_->idle()) {
    waiter_.wait(bell, std::min(look, add_saturated(now_ns(), kMillisecond)),
                 [&] { return consumer_->idle(); });
    if (now_ns() < look) continue;
    if (options_.interrupted && options_.interrupted()) interrupted();
    if (limit.expired(load_relaxed(member_.control.cell(member_.control.layout().bytes, options_.rank)))) {
      Error error(Code::kTimeout, "rank " + text(options_.rank) + " waited " +
                                      text(limit.counted_ns() / kMillisecond) +
                                      " ms for its device to end the copies of epoch " + text(joined_) +
                                      ", which was given up");
      member_.fail(error);
      throw error;
    }
    look = limit.next_look(now_ns());
  }
  last_ = statistics();
  cancellation_ = cancellation;
  returned(joined_);
}

void Transport::interrupted() {
  Interrupted error;
  error.message = "rank " + text(options_.rank) + " was interrupted by a signal while it waited";
  member_.fail(error);
  throw error;
}

// Ends the joined layer where it was given up, though nobody waited for it.
void Transport::settle_given_up() {
  const ControlBlock& control = member_.control;
  if (!control.has_extension()) return;
  // Rank 0, or who gave it up, is about to; neither need be waited for.
  if (control.wished(joined_)) control.cancel_layer(joined_, control.wished_by(joined_));
  if (member_.cancelled()) give_up(member_.cancellation(joined_, job_.layer));
}

// The last epoch that this rank has done with, whichever transport of its it was.
std::uint64_t Transport::left_behind() const {
  return load_relaxed(member_.control.cell(member_.control.layout().wait_returned_epoch, options_.rank));
}

void Transport::returned(std::uint64_t epoch) {
  const ControlBlock& control = member_.control;
  if (epoch == joined_) {
    returned_ = epoch;
    member_.epoch.store(0);
  }
  store_release(control.cell(control.layout().wait_returned_epoch, options_.rank), epoch);
  if (control.has_extension()) control.bell(0, kCallerBell).ring();
}

Statistics Transport::statistics() const {
  const ControlBlock& control = member_.control;
  const Layout& l = control.layout();
  Statistics s;
  s.epoch = joined_;
  s.layer = job_.layer;
  s.experts = job_.streamed;
  s.rank = options_.rank;
  s.writer_ns = load_relaxed(control.cell(l.writer_ns));
  s.slot_wait_ns = load_relaxed(control.cell(l.slot_wait_ns));
  s.total_ns = load_relaxed(control.cell(l.producer_total_ns));
  s.h2d_ns = load_relaxed(control.cell(l.h2d_ns, options_.rank));
  s.bytes = load_relaxed(control.cell(l.bytes, options_.rank));
  const Device::Pinned pinned = options_.device->pinned();
  s.pinned_bytes = pinned.pinned;
  s.unpinned_bytes = pinned.unpinned;
  return s;
}

Statistics Transport::wait(std::uint64_t epoch) {
  const Call call(*this);
  if (epoch != 0 && epoch == returned_) {
    if (!cancellation_) return last_;  // T15: the kept figures
    throw *cancellation_;
  }
  if (epoch == 0 || epoch != joined_) {
    refuse(Code::kState, "wait(" + text(epoch) + "): rank " + text(options_.rank) +
                             " never joined this epoch; " +
                             (joined_ == 0 ? "it has joined none" : "its last is " + text(joined_)));
  }
  if (options_.rank == 0 && ran_ != epoch && !member_.broken()) {
    refuse(Code::kState, "wait(" + text(epoch) + "): rank 0 must run this epoch first");
  }
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  member_.set_phase(Phase::kWaiting);
  LAYERCAST_FAULT_POINT("wait.entered");
  // Rank 0 may die between its verdict and the counter.
  const auto done = [&] {
    return load_acquire(control.cell(layout.consumer_done_epoch, options_.rank)) >=
               epoch &&                                                      // "consumer done"
           (load_acquire(control.cell(layout.producer_done_epoch)) >= epoch  // "producer done"
            || control.verdict(epoch) == Verdict::kDone);
  };
  const auto finish = [&] {
    member_.wait(
        waiter_, options_.layer_limit_ns, control.any_foreign(), options_.interrupted, done,
        [&](std::uint64_t ns) {
          const std::size_t r = member_.laggard();
          return Member::Stall{
              r, "rank " + text(options_.rank) + " waited " + text(ns / kMillisecond) +
                     " ms without progress for layer " + std::to_string(member_.layer.load()) + " (epoch " +
                     text(epoch) + "): " + text(load_relaxed(control.cell(layout.next_sequence))) +
                     " pieces published so far; " + member_.who(r) + " holds it up, it " + member_.doing(r)};
        },
        [&] {
          if (load_acquire(control.cell(layout.producer_done_epoch)) < epoch) member_.check_open(0);
        });
  };
  try {
    LAYERCAST_PAUSE_POINT();
    if (!done()) member_.check();  // T7: a finished layer can be collected whatever came after
    finish();
  } catch (const Interrupted&) {
    interrupted();
  } catch (Error& error) {
    if (error.code == Code::kCancelled && error.from_group) give_up(error);
    // What failed when the layer was complete does not take it back; and once one rank has said that it
    // failed, rank 0 cannot complete it any more.
    if (!control.poisoned()) throw;
    control.fail_layer(epoch);
    LAYERCAST_PAUSE_POINT();
    if (!done()) throw;
  }
  last_ = statistics();
  last_.pieces = consumer_->pieces();
  last_.resident_bytes = consumer_->resident_bytes();
  last_.direct = consumer_->was_direct();
  LAYERCAST_FAULT_POINT("wait.returned");
  returned(epoch);
  return last_;
}

void Transport::stream_wait(std::uint64_t epoch, std::uintptr_t stream) {
  check_owner();
  const std::lock_guard lock(mutex_);  // close() comes before or after
  if (closing_) refuse(Code::kState, "this transport is closed; open a new one");
  const ControlBlock& control = member_.control;
  const std::uint64_t joined = load_acquire(control.cell(control.layout().join_epoch, options_.rank));
  if (epoch == 0 || epoch != joined) {
    refuse(Code::kState, "wait(" + text(epoch) + "): a stream can wait for the epoch joined last, on rank " +
                             text(options_.rank) + " that is " + text(joined));
  }
  if (load_acquire(control.cell(control.layout().consumer_done_epoch, options_.rank)) < epoch)
    member_.check();
  options_.device->stream_wait(stream);
}

void Transport::consumed(std::uintptr_t stream) {
  check_owner();
  const std::lock_guard lock(mutex_);
  if (closing_) refuse(Code::kState, "this transport is closed; open a new one");
  options_.device->wait_for_stream(stream);
}

std::vector<std::array<std::uint64_t, 3>> Transport::seats() const {
  std::vector<std::array<std::uint64_t, 3>> out;
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    const PeerCell& peer = member_.control.peer(r);
    if (!member_.control.is_foreign(r)) out.push_back({r, load_acquire(peer.pid), peer.start_time});
  }
  return out;
}

void Transport::report_death(std::size_t rank, std::uint64_t pid, std::uint64_t started,
                             const char* how) const {
  if (getpid() == owner_ && liveness_) liveness_->report_death(rank, pid, started, how);
}

void Transport::overdue(std::uint64_t epoch, std::uint64_t waited_ms) const {
  check_owner();
  const ControlBlock& control = member_.control;
  if (closed_) refuse(Code::kState, "this transport is closed; open a new one");
  member_.check();
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    if (load_acquire(control.cell(control.layout().join_epoch, r)) >= epoch) continue;
    member_.timed_out({r, "rank " + text(options_.rank) + " waited " + text(waited_ms) + " ms for epoch " +
                              text(epoch) + "; " + member_.who(r) + " has not joined it, it " +
                              member_.doing(r)});
  }
}

void Transport::fail(Error error) {
  check_owner();
  member_.fail(error);
}

void Transport::close() noexcept {
  if (getpid() != owner_) {
    // T25: the threads and the bells are the parent's; a child's copy touches nothing.
    static_cast<void>(producer_.release());
    static_cast<void>(consumer_.release());
    static_cast<void>(liveness_.release());
    return;
  }
  std::unique_lock lock(mutex_);
  if (closing_) {  // T24
    idle_.wait(lock, [this] { return closed_ || (in_call_ && pthread_equal(call_thread_, pthread_self())); });
    return;
  }
  closing_ = true;
  if (joined_ != returned_ && !member_.broken()) {
    Error error(Code::kClosedWhileActive,
                "rank " + text(options_.rank) + " closed its transport during epoch " + text(joined_));
    member_.fail(error);
  }
  member_.closing.store(true, std::memory_order_release);
  member_.ring_everybody();
  // The writer itself may close: its own call cannot end before it returns.
  const bool from_inside = in_call_ && pthread_equal(call_thread_, pthread_self());
  if (!from_inside) idle_.wait(lock, [this] { return !in_call_; });
  lock.unlock();
  consumer_.reset();
  liveness_.reset();
  detach();
  lock.lock();
  closed_ = true;
  idle_.notify_all();
}

}  // namespace layercast
