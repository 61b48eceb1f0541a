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
  const std::size_t kinds = options_.kind_bytes.size();
  if (options_.destinations.empty()) {
    for (std::size_t k = 0; k < kinds; ++k) {
      options_.destinations.push_back(options_.device->allocate(options_.kind_bytes[k] * options_.experts));
    }
  } else {
    for (std::size_t k = 0; k < kinds; ++k) {
      options_.device->adopt(options_.destinations[k], options_.kind_bytes[k] * options_.experts);
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
  if (joined_ != returned_ && member_.cancelled()) give_up();  // nobody waited for it any more
  member_.check();
  const std::uint64_t epoch = job.epoch;
  if (joined_ != returned_) {
    refuse(Code::kState, "join(" + text(epoch) + "): epoch " + text(joined_) +
                             " has not been waited for on rank " + text(options_.rank));
  }
  const std::uint64_t newest = std::max(joined_.load(), options_.rank == 0 ? last_epoch() : 0);
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
  given_up_ = false;
  job_ = job;
  member_.layer.store(job.layer);
  member_.epoch.store(epoch);
  consumer_->begin(std::move(job));
  store_release(member_.control.cell(member_.control.layout().join_epoch, options_.rank), epoch);
  if (member_.control.has_extension()) member_.control.bell(0, kCallerBell).ring();
}

void Transport::join_wait(const std::function<bool()>& ready, const std::function<Member::Stall()>& missing,
                          const std::function<void()>& each_look) {
  member_.wait(
      waiter_, options_.join_limit_ns, member_.control.any_foreign(), options_.interrupted, ready,
      [&](std::uint64_t ns) {
        Member::Stall stall = missing();
        stall.text = "rank " + text(options_.rank) + " waited " + text(ns / kMillisecond) +
                     " ms in join for " + stall.text + "; it " + member_.doing(stall.rank);
        return stall;
      },
      [&] {
        liveness_->look();
        each_look();
      });
}

void Transport::wait_all_returned() {
  const ControlBlock& control = member_.control;
  const std::uint64_t previous = last_epoch();
  const std::size_t cells = control.layout().wait_returned_epoch;
  const auto behind = [&]() -> std::size_t {
    for (std::size_t r = 0; r < options_.tp_size; ++r) {
      if (load_acquire(control.cell(cells, r)) < previous) return r;
    }
    return options_.tp_size;
  };
  if (behind() == options_.tp_size) return;
  join_wait([&] { return behind() == options_.tp_size; },
            [&] {
              const std::size_t r = std::min(behind(), options_.tp_size - 1);  // it may have come just now
              return Member::Stall{r, member_.who(r) + " to return from wait(" + text(previous) + ")"};
            },
            [&] {
              const std::size_t r = behind();
              if (r < options_.tp_size) member_.check_open(r);
            });
}

void Transport::lead(const Job& job) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  for (std::size_t r = 0; r < options_.tp_size; ++r) member_.check_open(r);
  wait_all_returned();
  store_relaxed(control.cell(layout.layer_id), static_cast<std::uint64_t>(job.layer));
  store_relaxed(control.cell(layout.expert_count), job.streamed);
  if (control.has_extension()) store_relaxed(control.layer_cell().selection, job.selection());
  store_relaxed(control.cell(layout.layer_start_ns), now_ns());
  for (const std::size_t offset : {layout.writer_ns, layout.slot_wait_ns, layout.producer_total_ns}) {
    store_relaxed(control.cell(offset), 0);
  }
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    store_relaxed(control.cell(layout.h2d_ns, r), 0);
    store_relaxed(control.cell(layout.bytes, r), 0);
  }
  control.open_layer(job.epoch);
  store_release(control.cell(layout.active_epoch), job.epoch);  // "epoch": layer, count, zeroed statistics
  member_.ring_callers();
  // A rank that gave the layer up before it was published has left a wish; it looks at active_epoch after.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t r = 0; control.has_extension() && r < options_.tp_size; ++r) {
    if (load_relaxed(control.peer(r).cancel_wish) == job.epoch) control.cancel_layer(job.epoch, r);
  }
}

void Transport::follow(const Job& job) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  const std::uint64_t epoch = job.epoch;
  const auto active = [&] { return load_acquire(control.cell(layout.active_epoch)); };  // "epoch"
  // A layer that was given up is over for a rank that never entered it.
  const auto skip_cancelled = [&] {
    const std::uint64_t seen = active();
    if (seen < epoch && control.cancelled(seen)) returned(seen);
  };
  // T12: rank 0 is in a layer that this rank has not joined and does not mean to.
  const auto refuse_other = [&] {
    const std::uint64_t seen = active();
    const bool open = seen > joined_ && load_acquire(control.cell(layout.producer_done_epoch)) < seen &&
                      !control.cancelled(seen);
    if (seen == epoch || (seen < epoch && !open)) return;
    Error error(Code::kProtocol, "rank " + text(options_.rank) + " joined epoch " + text(epoch) +
                                     ", rank 0 is in epoch " + text(seen));
    member_.fail(error);
    throw error;
  };
  for (;;) {
    skip_cancelled();
    refuse_other();
    const std::uint64_t last = active();  // one look: the epoch may come between two
    if (last >= epoch) break;
    join_wait([&] { return active() != last; },
              [&] {
                return Member::Stall{
                    0, member_.who(0) + " to publish epoch " + text(epoch) + "; its last is " + text(last)};
              },
              [&] { member_.check_open(0); });
  }
  compare_jobs(job);
}

void Transport::compare_jobs(const Job& job) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  const auto their_layer = static_cast<std::int64_t>(load_relaxed(control.cell(layout.layer_id)));
  const std::uint64_t their_experts = load_relaxed(control.cell(layout.expert_count));
  const std::uint64_t theirs = control.has_extension() ? load_relaxed(control.layer_cell().selection) : 0;
  const bool foreign = control.is_foreign(0);
  if (their_layer == job.layer && their_experts == job.streamed && (foreign || theirs == job.selection())) {
    return;
  }
  const auto said = [](std::int64_t layer, std::uint64_t experts, std::uint64_t selection) {
    return "layer " + std::to_string(layer) + " with " + text(experts) + " experts" +
           (selection == 0 ? "" : " (selection " + text(selection % 1'000'000) + ")");
  };
  Error error(Code::kProtocol,
              "epoch " + text(job.epoch) + ": rank 0 joined " + said(their_layer, their_experts, theirs) +
                  ", rank " + text(options_.rank) + " " + said(job.layer, job.streamed, job.selection()));
  error.epoch = job.epoch;
  error.layer = job.layer;
  member_.fail(error);
  throw error;
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
  store_relaxed(control.peer(options_.rank).cancel_wish, epoch);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (last_epoch() < epoch) return true;  // rank 0 will find the wish when it publishes the layer
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
  try {
    member_.check();
    ran_ = epoch;
    producer_->run(job_, writer, waiter_);
  } catch (Error& error) {
    if (error.code == Code::kCancelled && error.from_group) give_up();
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

// The joined layer was cancelled: it ends here when nothing of it moves any more.
void Transport::give_up() {
  const Doorbell bell = member_.bell(kCallerBell);
  while (!consumer_->idle()) {
    waiter_.wait(bell, add_saturated(now_ns(), kMillisecond), [&] { return consumer_->idle(); });
  }
  last_ = statistics();
  given_up_ = true;
  returned(joined_);
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
    if (!given_up_) return last_;  // T15: the kept figures
    throw member_.cancellation(epoch, job_.layer);
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
  const auto done = [&] {
    return load_acquire(control.cell(layout.consumer_done_epoch, options_.rank)) >=
               epoch &&                                                      // "consumer done"
           load_acquire(control.cell(layout.producer_done_epoch)) >= epoch;  // "producer done"
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
    if (!done()) member_.check();  // T7: a finished layer can be collected whatever came after
    finish();
  } catch (Interrupted& error) {
    error.message = "rank " + text(options_.rank) + " was interrupted by a signal while it waited";
    member_.fail(error);
    throw;
  } catch (Error& error) {
    if (error.code == Code::kCancelled && error.from_group) give_up();
    throw;
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

std::vector<std::uint64_t> Transport::pids() const {
  std::vector<std::uint64_t> out;
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    if (!member_.control.is_foreign(r)) out.push_back(load_acquire(member_.control.peer(r).pid));
  }
  return out;
}

void Transport::report_death(std::size_t rank, std::uint64_t pid, const char* how) const {
  if (getpid() == owner_ && liveness_) liveness_->report_death(rank, pid, how);
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
