#include "producer.h"

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

Producer::Producer(Member& member, const TransportOptions& options)
    : member_(member),
      options_(options),
      slots_(options.all_slots, options.tp_size, options.kind_bytes.size(),
             member.control.version() == kVersionExperts) {
  const ControlBlock& control = member.control;
  for (std::size_t s = 0; s < control.slots(); ++s)
    published_.push_back(load_acquire(control.ready_sequence(s)));
  sequence_ = load_acquire(control.cell(control.layout().next_sequence));
}

bool Producer::all_acknowledged(std::size_t slot) const {
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    if (load_acquire(member_.control.ack(r, slot)) < published_[slot]) return false;  // "ack"
  }
  return true;
}

std::size_t Producer::slowest(std::size_t slot) const {
  std::size_t who = 0;
  for (std::size_t r = 1; r < options_.tp_size; ++r) {
    if (load_relaxed(member_.control.ack(r, slot)) < load_relaxed(member_.control.ack(who, slot))) who = r;
  }
  return who;
}

void Producer::wait_acknowledged(std::size_t slot, Waiter& waiter, Phase phase) {
  if (all_acknowledged(slot)) return;
  const ControlBlock& control = member_.control;
  member_.set_phase(phase);
  const std::uint64_t epoch = member_.epoch.load(std::memory_order_relaxed);
  const std::size_t joins = control.layout().join_epoch;
  // A rank that has not joined is late, not stuck: it has the longer limit.
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    const auto joined = [&] {
      return load_acquire(control.cell(joins, r)) >= epoch || all_acknowledged(slot);
    };
    member_.wait(
        waiter, options_.join_limit_ns, control.any_foreign(), options_.interrupted, joined,
        [&](std::uint64_t ns) {
          return member_.who(r) + " did not join epoch " + std::to_string(epoch) + " within " +
                 std::to_string(ns / kMillisecond) + " ms; its last epoch is " +
                 std::to_string(load_relaxed(control.cell(joins, r)));
        },
        [&] { member_.check_open(r); });
  }
  member_.wait(
      waiter, options_.layer_limit_ns, control.any_foreign(), options_.interrupted,
      [&] { return all_acknowledged(slot); },
      [&](std::uint64_t ns) {
        const std::size_t r = slowest(slot);
        return "rank 0 waited " + std::to_string(ns / kMillisecond) + " ms without progress for " +
               member_.who(r) + " to acknowledge slot " + std::to_string(slot) + ": published " +
               std::to_string(published_[slot]) + ", acknowledged " +
               std::to_string(load_relaxed(control.ack(r, slot)));
      },
      [&] {
        for (std::size_t r = 0; r < options_.tp_size; ++r) {
          if (load_acquire(control.ack(r, slot)) < published_[slot]) member_.check_open(r);
        }
      });
}

void Producer::fill(const Cut& cut, std::size_t piece, std::size_t slot, std::int64_t layer, Writer& writer) {
  cut.runs(piece, runs_);
  writing_expert_.store(static_cast<std::int64_t>(runs_.front().expert), std::memory_order_relaxed);
  writing_since_ns_.store(now_ns(), std::memory_order_release);
  try {
    writer.fill({layer, piece, slot, runs_, options_.tp_size, options_.kind_bytes.size()},
                View(slots_, slot));
  } catch (Error& error) {
    writing_since_ns_.store(0, std::memory_order_release);
    if (error.expert < 0) error.expert = writing_expert_.load(std::memory_order_relaxed);
    throw;
  } catch (...) {
    writing_since_ns_.store(0, std::memory_order_release);
    throw;
  }
  writing_since_ns_.store(0, std::memory_order_release);
}

void Producer::publish(std::size_t piece, std::size_t slot, std::uint64_t epoch) {
  const ControlBlock& control = member_.control;
  store_relaxed(control.ready_epoch(slot), epoch);
  store_relaxed(control.ready_number(slot), piece);
  published_[slot] = ++sequence_;
  store_relaxed(control.cell(control.layout().next_sequence), sequence_);
  store_release(control.ready_sequence(slot), sequence_);  // "ready": slot bytes, epoch, number
  member_.ring_consumers();
}

void Producer::run(std::uint64_t epoch, std::int64_t layer, std::size_t experts, Writer& writer,
                   Waiter& waiter) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
  const bool version2 = control.version() == kVersionExperts;
  const bool whole = version2 || writer.whole_experts();
  const Cut cut(options_.kind_bytes, experts, version2 ? 1 : options_.piece_bytes, whole);
  if (!version2) store_relaxed(control.layer_cell().whole_experts, whole ? 1 : 0);  // "piece": before ready
  const std::uint64_t start = now_ns();
  std::uint64_t writer_ns = 0, wait_ns = 0;
  for (std::size_t piece = 0; piece < cut.pieces(); ++piece) {
    const std::size_t slot = piece % control.slots();
    const std::uint64_t before = now_ns();
    wait_acknowledged(slot, waiter, Phase::kSlotWait);
    member_.check();  // T21: never call the writer once more after a failure
    member_.set_phase(Phase::kWriting);
    const std::uint64_t free = now_ns();
    fill(cut, piece, slot, layer, writer);
    member_.check();
    publish(piece, slot, epoch);
    wait_ns += free - before;
    writer_ns += now_ns() - free;
  }
  for (std::size_t slot = 0; slot < control.slots(); ++slot) wait_acknowledged(slot, waiter, Phase::kAckWait);
  store_relaxed(control.cell(layout.writer_ns), writer_ns);
  store_relaxed(control.cell(layout.slot_wait_ns), wait_ns);
  store_relaxed(control.cell(layout.producer_total_ns), now_ns() - start);
  store_release(control.cell(layout.producer_done_epoch), epoch);  // "producer done": statistics
  member_.ring_callers();
}

}  // namespace layercast
