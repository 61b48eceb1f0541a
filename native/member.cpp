#include "member.h"

namespace layercast {

namespace {

std::uint64_t checked_rank(const TransportOptions& options) {
  if (options.rank >= options.tp_size) {
    refuse(Code::kArgument, "rank: expected 0.." + std::to_string(options.tp_size - 1) + ", got " +
                                std::to_string(options.rank));
  }
  return options.rank;
}

}  // namespace

Member::Member(const TransportOptions& options)
    : control(options.control, options.control_bytes, options.tp_size),
      rank(checked_rank(options)),
      self(self_identity()),
      generation(control.generation()) {}

void Member::check() const {
  if (control.poisoned()) {
    // Who failed may have been put aside by whom it woke, or killed, before it had rung all.
    control.ring_each(kCallerBell);
    if (auto error = control.failure()) throw *error;
  }
  if (superseded()) {
    refuse(Code::kSuperseded, "the control region was initialised again (generation " +
                                  std::to_string(control.generation()) + ", this transport belongs to " +
                                  std::to_string(generation) + "); open a new transport");
  }
  if (closing.load(std::memory_order_acquire)) refuse(Code::kState, "this transport is closed");
  if (cancelled()) throw cancellation(epoch.load(), layer.load());
}

Error Member::cancellation(std::uint64_t its_epoch, std::int64_t its_layer) const {
  const std::size_t by = control.cancelled_by();
  Error error(Code::kCancelled, who(by) + " cancelled epoch " + std::to_string(its_epoch) + " (layer " +
                                    std::to_string(its_layer) + ")");
  error.rank = static_cast<std::int64_t>(by);
  error.pid = control.is_foreign(by) ? 0 : control.peer(by).pid;
  error.epoch = its_epoch;
  error.layer = its_layer;
  error.from_group = true;
  return error;
}

void Member::check_open(std::size_t peer) const {
  if (peer == rank || control.state(peer) != PeerState::kClosed) return;
  Error error(Code::kPeerClosed, who(peer) + " closed its transport");
  error.rank = static_cast<std::int64_t>(peer);
  error.pid = control.peer(peer).pid;
  error.epoch = epoch.load();
  error.layer = layer.load();
  control.poison(error);
  check();
}

void Member::fail(Error& error) const {
  if (error.from_group) return;
  if (error.rank < 0) error.rank = static_cast<std::int64_t>(rank);
  if (error.pid == 0 && error.rank == static_cast<std::int64_t>(rank)) error.pid = self.pid;
  if (error.epoch == 0) error.epoch = epoch.load();
  if (error.layer < 0) error.layer = layer.load();
  if (superseded()) return;  // the region is somebody else's now
  control.poison(error);
  if (!control.has_extension()) ring_everybody();
}

void Member::set_phase(Phase phase) const {
  if (!control.has_extension()) return;
  std::atomic_ref<std::uint32_t>(control.peer(rank).phase)
      .store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
}

void Member::ring_everybody() const {
  if (control.has_extension()) return control.ring_all();
  Doorbell(&own_bell_[kCallerBell]).wake();
  Doorbell(&own_bell_[kConsumerBell]).wake();
}

std::string Member::who(std::size_t peer) const {
  std::string text = "rank " + std::to_string(peer);
  if (!control.is_foreign(peer)) text += " (pid " + std::to_string(control.peer(peer).pid) + ")";
  return text;
}

std::string Member::doing(std::size_t peer) const {
  if (control.is_foreign(peer)) return "does not say what it does";
  switch (static_cast<Phase>(std::atomic_ref<std::uint32_t>(control.peer(peer).phase).load())) {
    case Phase::kIdle:
      return "is alive and outside every call of this library";
    case Phase::kJoining:
      return "is alive and was last seen in join";
    case Phase::kWriting:
      return "is alive and was last seen inside its writer";
    case Phase::kSlotWait:
      return "is alive and was last seen waiting for a free slot";
    case Phase::kAckWait:
      return "is alive and was last seen waiting for the last acknowledgements";
    case Phase::kWaiting:
      return "is alive and was last seen in wait";
    case Phase::kClosing:
      return "is alive and was last seen in close";
  }
  return "is alive";
}

std::size_t Member::laggard() const {
  std::size_t who = 0;
  std::uint64_t most = 0;
  for (std::size_t r = 0; r < control.tp_size(); ++r) {
    std::uint64_t behind = 0;
    for (std::size_t s = 0; s < control.slots(); ++s) {
      const std::uint64_t published = load_relaxed(control.ready_sequence(s));
      behind += published - std::min(published, load_relaxed(control.ack(r, s)));
    }
    if (behind > most) most = behind, who = r;
  }
  return who;
}

void Member::timed_out(Stall stall) const {
  // Who is stopped is to blame, whatever the counters say: it may have stopped between a store and its bell.
  for (std::size_t r = 0; r < control.tp_size(); ++r) {
    if (r == rank || control.is_foreign(r) || control.peer(r).pid_namespace != self.pid_namespace) continue;
    if (!process_stopped(control.peer(r).pid)) continue;
    stall.rank = r;
    stall.text += "; " + who(r) + " is stopped, by a signal or a debugger";
    break;
  }
  Error error(Code::kTimeout, std::move(stall.text));
  error.rank = static_cast<std::int64_t>(stall.rank);
  if (!control.is_foreign(stall.rank)) error.pid = control.peer(stall.rank).pid;
  fail(error);
  check();  // another rank's cause, where it was first
  throw error;
}

}  // namespace layercast
