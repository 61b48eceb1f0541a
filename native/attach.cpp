// How a rank enters and leaves its place in the control block, and what it may ask for there.
#include <vector>

#include "transport.h"

namespace layercast {

namespace {

std::string text(std::uint64_t value) { return std::to_string(value); }

}  // namespace

// T17: a rank is one process's; the entry is claimed by compare-and-swap of its state.
void Transport::attach() {
  const ControlBlock& control = member_.control;
  if (!control.has_extension()) return;
  PeerCell& own = control.peer(options_.rank);
  std::atomic_ref<std::uint32_t> state(own.state);
  std::uint32_t seen = state.load(std::memory_order_acquire);
  const auto attached = static_cast<std::uint32_t>(PeerState::kAttached);
  for (;;) {
    const std::uint64_t pid = load_acquire(own.pid);
    if (seen == attached && (pid == 0 || is_there({pid, own.start_time, own.pid_namespace}))) {
      refuse(Code::kState, "rank " + text(options_.rank) + " is taken by pid " + text(pid) +
                               "; two processes were given the same rank");
    }
    if (seen == attached) {
      refuse(Code::kPeerDied, "rank " + text(options_.rank) + " was pid " + text(pid) +
                                  ", which died without closing; initialise the group again");
    }
    if (state.compare_exchange_weak(seen, attached)) break;
  }
  // Who reads between these stores must not take the last one's pid and this one's start for a process.
  store_release(own.pid, 0);
  std::atomic_thread_fence(std::memory_order_release);
  own.start_time = member_.self.start_time;
  own.pid_namespace = member_.self.pid_namespace;
  store_release(own.pid, member_.self.pid);  // "peer identity"
  control.membership_changed();
}

void Transport::detach() {
  if (!member_.control.has_extension() || member_.superseded()) return;
  std::atomic_ref<std::uint32_t>(member_.control.peer(options_.rank).state)
      .store(static_cast<std::uint32_t>(PeerState::kClosed), std::memory_order_release);
  member_.control.membership_changed();
}

void Transport::check_epoch(std::uint64_t epoch) const {
  if (epoch >= 1 && epoch <= kMaxEpoch) return;
  refuse(Code::kArgument, "epoch: expected 1.." + text(kMaxEpoch) + ", got " + text(epoch));
}

void Transport::check_job(const Job& job) const {
  check_epoch(job.epoch);
  if (job.layer < 0) refuse(Code::kArgument, "layer_id: expected >= 0, got " + std::to_string(job.layer));
  if (job.streamed > options_.experts || (job.streamed < 1 && !job.selected)) {
    refuse(Code::kArgument,
           "expert_count: expected 1.." + text(options_.experts) + ", got " + text(job.streamed));
  }
  if (job.device_layer >= options_.device_layers) {
    refuse(Code::kArgument, "device_layer: expected 0.." + text(options_.device_layers - 1) + ", got " +
                                text(job.device_layer));
  }
  if (job.selection() != 0 && !member_.control.has_extension()) {
    refuse(Code::kArgument, "experts: this control region has no room for a selection; load whole layers");
  }
  std::vector<bool> seen(options_.experts);
  const auto check = [&](std::size_t id) {
    if (id >= options_.experts) {
      refuse(Code::kArgument, "experts: expected ids below " + text(options_.experts) + ", got " + text(id));
    }
    if (seen[id]) refuse(Code::kArgument, "experts: " + text(id) + " is named twice");
    seen[id] = true;
  };
  for (const std::size_t id : job.ids) check(id);
  for (const Resident& resident : job.residents) {
    if (!job.selected && resident.expert < job.streamed) {
      refuse(Code::kArgument, "resident expert " + text(resident.expert) + ": it is streamed as well");
    }
    check(resident.expert);
    if (resident.addresses.empty() || resident.addresses.size() == options_.kind_bytes.size()) continue;
    refuse(Code::kArgument, "resident expert " + text(resident.expert) + ": expected " +
                                text(options_.kind_bytes.size()) + " addresses, one per kind, got " +
                                text(resident.addresses.size()));
  }
}

}  // namespace layercast
