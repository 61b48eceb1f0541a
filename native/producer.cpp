#include "producer.h"

#include <algorithm>

#include "checksum.h"
#include "fault.h"
#include "threads.h"

namespace layercast {

class Producer::View final : public SlotView {
 public:
  View(const SlotMap& map, std::size_t slot) : map_(map), slot_(slot) {}
  std::byte* address(std::size_t rank, const Run& run) const override {
    return map_.address(slot_, rank, run);
  }

 private:
  const SlotMap& map_;
  std::size_t slot_;
};

Producer::Producer(Member& member, const TransportOptions& options, Trace& trace)
    : member_(member),
      options_(options),
      trace_(trace),
      slots_(options.all_slots, options.tp_size, options.kind_bytes.size(),
             member.control.version() == kVersionExperts),
      filled_(member.control.slots()) {
  const ControlBlock& control = member.control;
  for (std::size_t s = 0; s < control.slots(); ++s)
    published_.push_back(load_acquire(control.ready_sequence(s)));
  sequence_ = load_acquire(control.cell(control.layout().next_sequence));
  for (std::size_t n = 0; n < std::max<std::size_t>(1, options.writer_threads); ++n) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->number = n;
  }
}

Producer::~Producer() {
  {
    const std::lock_guard lock(mutex_);
    dismissed_ = true;
  }
  work_.notify_all();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

std::uint64_t Producer::writing_since_ns() const {
  std::uint64_t oldest = 0;
  for (const auto& worker : workers_) {
    const std::uint64_t since = worker->writing_since_ns.load(std::memory_order_acquire);
    if (since != 0 && (oldest == 0 || since < oldest)) oldest = since;
  }
  return oldest;
}

std::int64_t Producer::writing_expert() const {
  const std::uint64_t oldest = writing_since_ns();
  for (const auto& worker : workers_) {
    if (worker->writing_since_ns.load(std::memory_order_acquire) == oldest) {
      return worker->writing_expert.load(std::memory_order_relaxed);
    }
  }
  return -1;
}

bool Producer::all_acknowledged(std::size_t slot) const {
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    if (load_acquire(member_.control.ack(r, slot)) < published_[slot]) return false;  // "ack"
  }
  return true;
}

// Its slot's last piece has been published, and read by all.
bool Producer::is_free(std::size_t piece) const {
  const std::size_t slots = member_.control.slots();
  return head_.load(std::memory_order_acquire) + slots > piece && all_acknowledged(piece % slots);
}

std::size_t Producer::slowest(std::size_t slot) const {
  std::size_t who = 0;
  for (std::size_t r = 1; r < options_.tp_size; ++r) {
    if (load_relaxed(member_.control.ack(r, slot)) < load_relaxed(member_.control.ack(who, slot))) who = r;
  }
  return who;
}

void Producer::wait_free(std::size_t piece, Waiter& waiter, const std::function<bool()>& interrupted,
                         Phase phase) {
  const ControlBlock& control = member_.control;
  const std::size_t slot = piece % control.slots();
  member_.set_phase(phase);
  const std::size_t joins = control.layout().join_epoch;
  const auto free = [&] { return is_free(piece) || stop_.load(std::memory_order_acquire); };
  // A rank that has not joined is late, not stuck: it has the longer limit.
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    member_.wait(
        waiter, options_.join_limit_ns, control.any_foreign(), interrupted,
        [&] { return load_acquire(control.cell(joins, r)) >= job_->epoch || free(); },
        [&](std::uint64_t ns) {
          return Member::Stall{
              r, member_.who(r) + " did not join epoch " + std::to_string(job_->epoch) + " within " +
                     std::to_string(ns / kMillisecond) + " ms; its last epoch is " +
                     std::to_string(load_relaxed(control.cell(joins, r))) + "; it " + member_.doing(r)};
        },
        [&] { member_.check_open(r); });
  }
  member_.wait(
      waiter, options_.layer_limit_ns, control.any_foreign(), interrupted, free,
      [&](std::uint64_t ns) {
        const std::size_t r = slowest(slot);
        return Member::Stall{r, "rank 0 waited " + std::to_string(ns / kMillisecond) +
                                    " ms without progress for " + member_.who(r) + " to acknowledge slot " +
                                    std::to_string(slot) + ": published " + std::to_string(published_[slot]) +
                                    ", acknowledged " + std::to_string(load_relaxed(control.ack(r, slot))) +
                                    "; it " + member_.doing(r)};
      },
      [&] {
        for (std::size_t r = 0; r < options_.tp_size; ++r) {
          if (load_acquire(control.ack(r, slot)) < published_[slot]) member_.check_open(r);
        }
      });
}

void Producer::fill(Worker& worker, std::size_t piece, std::size_t slot) {
  try {
    writer_->fill({job_->layer, piece, slot, worker.runs, options_.tp_size, options_.kind_bytes.size()},
                  View(slots_, slot));
  } catch (Error& error) {
    worker.writing_since_ns.store(0, std::memory_order_release);
    if (error.expert < 0) error.expert = worker.writing_expert.load(std::memory_order_relaxed);
    throw;
  } catch (...) {
    worker.writing_since_ns.store(0, std::memory_order_release);
    throw;
  }
  worker.writing_since_ns.store(0, std::memory_order_release);
}

bool Producer::is_verified(std::size_t piece) const {
  return options_.verify_every != 0 && piece % options_.verify_every == 0 && !writer_->direct();
}

void Producer::record_checksums(const Worker& worker, std::size_t slot) {
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    PieceChecksum sum;
    const std::size_t owned = job_->owned_by(r);
    for (const Run& run : worker.runs) {
      if (run.expert < owned) sum.add(slots_.address(slot, r, run), run.bytes);
    }
    store_relaxed(member_.control.checksum(slot, r), sum.value());
  }
}

void Producer::publish(std::size_t piece, std::size_t slot) {
  const ControlBlock& control = member_.control;
  // The same for a whole layer: a line that is not written stays in the consumers' caches.
  if (load_relaxed(control.ready_epoch(slot)) != job_->epoch) {
    store_relaxed(control.ready_epoch(slot), job_->epoch);
  }
  store_relaxed(control.ready_number(slot), piece);
  published_[slot] = ++sequence_;
  store_relaxed(control.cell(control.layout().next_sequence), sequence_);
  store_release(control.ready_sequence(slot), sequence_);  // "ready": slot bytes, epoch, number, checksums
  head_.store(piece + 1, std::memory_order_release);
  member_.ring_consumers();
}

// Publishes it, and what was filled behind it and had to wait; if an earlier piece is still in work, its
// worker will.
void Producer::filled(std::size_t piece) {
  const std::size_t slots = member_.control.slots();
  if (!crew_) return publish(piece, piece % slots);
  const std::lock_guard lock(mutex_);
  filled_[piece % slots] = 1;
  for (std::size_t at = head_.load(); at < cut_.pieces() && filled_[at % slots] != 0; ++at) {
    filled_[at % slots] = 0;
    publish(at, at % slots);
  }
}

void Producer::work(Worker& worker, Waiter& waiter, const std::function<bool()>& interrupted) {
  std::uint64_t now = now_ns();
  for (;;) {
    const std::size_t piece = next_.fetch_add(1, std::memory_order_relaxed);
    if (piece >= cut_.pieces()) return;
    const std::size_t slot = piece % member_.control.slots();
    if (!is_free(piece)) {
      wait_free(piece, waiter, interrupted, Phase::kSlotWait);
      const std::uint64_t before = now;
      now = now_ns();
      worker.wait_ns += now - before;
      trace_.add(Doing::kSlotWait, before, now, job_->epoch, piece, worker.number);
    }
    if (stop_.load(std::memory_order_acquire)) return;
    member_.check();  // T21: never call the writer once more after a failure
    member_.set_phase(Phase::kWriting);
    cut_.runs(piece, worker.runs);
    for (Run& run : worker.runs) run.expert = job_->expert(run.expert);
    worker.writing_expert.store(static_cast<std::int64_t>(worker.runs.front().expert),
                                std::memory_order_relaxed);
    worker.writing_since_ns.store(now, std::memory_order_release);
    LAYERCAST_FAULT_POINT("producer.before_fill");
    fill(worker, piece, slot);
    if (is_verified(piece)) record_checksums(worker, slot);
    member_.check();
    LAYERCAST_FAULT_POINT("producer.before_publish");
    filled(piece);
    LAYERCAST_FAULT_POINT("producer.published");
    const std::uint64_t before = now;
    now = now_ns();
    worker.writer_ns += now - before;
    trace_.add(Doing::kWriting, before, now, job_->epoch, piece, worker.number);
  }
}

void Producer::run(const Job& job, Writer& writer, Waiter& waiter) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  const bool version2 = control.version() == kVersionExperts;
  const bool whole = version2 || writer.whole_experts();
  if (version2 && writer.direct()) refuse(Code::kArgument, "arena: version 2 has no direct path");
  job_ = &job;
  writer_ = &writer;
  const std::uint64_t paired = version2 ? 0 : writer.paired();
  // The direct path hands over one token in place of bytes.
  cut_ = writer.direct()
             ? Cut({1}, 1, 1, false)
             : Cut(options_.kind_bytes, job.streamed, version2 ? 1 : options_.piece_bytes, whole, paired);
  if (job.streamed == 0) cut_ = Cut();
  if (!version2) {
    store_relaxed(control.layer_cell().whole_experts, whole ? 1 : 0);  // "piece": before ready
    store_relaxed(control.layer_cell().direct, writer.direct() ? 1 : 0);
    store_relaxed(control.layer_cell().paired, paired);
  }
  next_.store(0);
  head_.store(0);
  stop_.store(false);
  failure_ = nullptr;
  std::fill(filled_.begin(), filled_.end(), 0);
  const std::uint64_t start = now_ns();
  for (const auto& worker : workers_) worker->writer_ns = worker->wait_ns = 0;
  crew_ = workers_.size() > 1 && writer.parallel() && cut_.pieces() > 1;
  if (crew_) hire();
  try {
    work(*workers_[0], waiter, options_.interrupted);
    for (std::size_t back = std::min(control.slots(), cut_.pieces()); back > 0; --back) {
      const std::size_t next = cut_.pieces() + control.slots() - back;  // whoever came next would wait for it
      if (!is_free(next)) wait_free(next, waiter, options_.interrupted, Phase::kAckWait);
    }
  } catch (...) {
    failed();
  }
  if (crew_) wait_crew();
  if (failure_) std::rethrow_exception(failure_);
  std::uint64_t writer_ns = 0, wait_ns = 0;
  for (const auto& worker : workers_) writer_ns += worker->writer_ns, wait_ns += worker->wait_ns;
  store_relaxed(control.cell(layout.writer_ns), writer_ns);
  store_relaxed(control.cell(layout.slot_wait_ns), wait_ns);
  store_relaxed(control.cell(layout.producer_total_ns), now_ns() - start);
  LAYERCAST_FAULT_POINT("producer.before_done");
  LAYERCAST_PAUSE_POINT();
  if (!control.close_layer(job.epoch)) {  // given up or failed at the last moment
    member_.check();
    refuse(Code::kProtocol, "epoch " + std::to_string(job.epoch) + " has ended before rank 0 ended it");
  }
  LAYERCAST_PAUSE_POINT();
  store_release(control.cell(layout.producer_done_epoch), job.epoch);  // "producer done": statistics
  member_.ring_callers();
}

// The first failure is the one to tell; everybody else stops.
void Producer::failed() {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
  stop_.store(true, std::memory_order_release);
  member_.bell(kCallerBell).wake();
}

void Producer::hire() {
  for (std::size_t n = 1; n < workers_.size(); ++n) {
    Worker& worker = *workers_[n];
    if (!worker.thread.joinable()) worker.thread = std::thread([this, &worker] { serve(worker); });
  }
  {
    const std::lock_guard lock(mutex_);
    busy_ = workers_.size() - 1;
    ++shift_;
  }
  work_.notify_all();
}

void Producer::serve(Worker& worker) {
  name_thread("layercast-write", options_.cpus);
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return dismissed_ || shift_ != served; });
    if (dismissed_) return;
    served = shift_;
    lock.unlock();
    try {
      work(worker, worker.waiter, {});
    } catch (...) {
      failed();
    }
    lock.lock();
    if (--busy_ == 0) idle_.notify_all();
  }
}

void Producer::wait_crew() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return busy_ == 0; });
}

}  // namespace layercast
