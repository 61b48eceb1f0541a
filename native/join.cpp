// How the ranks of a group come into the same layer: rank 0 publishes it, the others follow.
#include "fault.h"
#include "transport.h"

namespace layercast {

namespace {

std::string text(std::uint64_t value) { return std::to_string(value); }

}  // namespace

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
  for (std::size_t r = 0; r < options_.tp_size; ++r) member_.check_open(r);
  // Layers that were given up and that rank 0 does not join: another rank may be waiting for them.
  for (std::uint64_t passed; (passed = control.next_wish(last_epoch(), job.epoch)) != 0;) {
    wait_all_returned();
    Job none;
    none.epoch = passed;
    publish(none, true);
    returned(passed);
  }
  wait_all_returned();
  publish(job, false);
}

// What every rank has left behind is free to be overwritten.
void Transport::publish(const Job& job, bool given_up) {
  const ControlBlock& control = member_.control;
  const Layout& layout = control.layout();
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
  if (given_up) control.cancel_layer(job.epoch, control.wished_by(job.epoch));
  LAYERCAST_PAUSE_POINT();
  store_release(control.cell(layout.active_epoch), job.epoch);  // "epoch": layer, count, zeroed statistics
  member_.ring_callers();
  LAYERCAST_PAUSE_POINT();
  // "cancel wish": a rank that gave the layer up before it was published looks at active_epoch afterwards.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!given_up && control.has_extension() && control.wished(job.epoch)) {
    control.cancel_layer(job.epoch, control.wished_by(job.epoch));
  }
}

// The active epoch is looked at first, then what became of it: rank 0 begins no other before this rank has
// left this one behind, so until then the two belong together, however long this rank is held up in between.
void Transport::follow(const Job& job) {
  const ControlBlock& control = member_.control;
  const std::uint64_t epoch = job.epoch;
  for (;;) {
    const std::uint64_t seen = last_epoch();  // "epoch"
    LAYERCAST_PAUSE_POINT();
    if (seen == epoch) break;
    if (seen > epoch) refuse_other(epoch, seen);
    if (seen > std::max(joined_.load(), left_behind())) {
      const bool wished = control.has_extension() && control.wished(seen);
      LAYERCAST_PAUSE_POINT();
      const auto verdict = control.verdict(seen);
      const bool done = load_acquire(control.cell(control.layout().producer_done_epoch)) >= seen;
      if (done || verdict == Verdict::kDone || verdict == Verdict::kCancelled) {
        // Given up; or done without this rank: nothing was streamed, or it was before this transport.
        returned(seen);
        continue;
      }
      if (verdict == Verdict::kFailed) member_.check();
      if (!wished) refuse_other(epoch, seen);  // T12: a layer that this rank does not mean to join
      // Rank 0, or who gave it up, is about to; neither need be waited for.
      control.cancel_layer(seen, control.wished_by(seen));
      continue;
    }
    join_wait([&] { return last_epoch() != seen; },
              [&] {
                return Member::Stall{
                    0, member_.who(0) + " to publish epoch " + text(epoch) + "; its last is " + text(seen)};
              },
              [&] { member_.check_open(0); });
  }
  if (!control.cancelled(epoch)) compare_jobs(job);  // rank 0 may not have joined what was given up
}

void Transport::refuse_other(std::uint64_t epoch, std::uint64_t seen) {
  Error error(Code::kProtocol, "rank " + text(options_.rank) + " joined epoch " + text(epoch) +
                                   ", rank 0 is in epoch " + text(seen));
  member_.fail(error);
  throw error;
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

}  // namespace layercast
