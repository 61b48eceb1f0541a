#include "liveness.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace layercast {

namespace {

int open_pidfd(std::uint64_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
}

}  // namespace

Liveness::Liveness(Member& member, const TransportOptions& options, const Producer* producer)
    : member_(member),
      options_(options),
      producer_(producer),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      pidfds_(options.tp_size, -1),
      watched_(options.tp_size) {
  if (wake_fd_ < 0) refuse(Code::kResource, "no file descriptor left to watch the other ranks with");
  thread_ = std::thread([this] { loop(); });
}

void Liveness::look() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof one);  // a full counter wakes as well
}

void Liveness::stop() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  look();
  thread_.join();
  for (const int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
  close(wake_fd_);
}

void Liveness::report_death(std::size_t rank, std::uint64_t pid, std::uint64_t started,
                            const char* how) const {
  if (rank >= options_.tp_size || member_.control.state(rank) == PeerState::kClosed) return;  // it had left
  if (!member_.control.is_foreign(rank)) {
    const PeerCell& seat = member_.control.peer(rank);
    if (load_acquire(seat.pid) != pid || seat.start_time != started) return;  // another sits there by now
  }
  Error error(Code::kPeerDied,
              "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ") died: " + how);
  error.rank = static_cast<std::int64_t>(rank);
  error.pid = pid;
  member_.fail(error);
}

void Liveness::watch_newcomers() {
  const ControlBlock& control = member_.control;
  if (!control.has_extension()) return;
  for (std::size_t r = 0; r < options_.tp_size; ++r) {
    const std::uint64_t pid = load_acquire(control.peer(r).pid);  // "peer identity"
    if (pid == 0) continue;
    const Watched who{pid, control.peer(r).start_time};
    const std::uint64_t space = control.peer(r).pid_namespace;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (load_relaxed(control.peer(r).pid) != pid || who == watched_[r]) continue;
    // Across pid namespaces its number says nothing here: its socket does ("report_death").
    if (space == 0 || space != member_.self.pid_namespace || pid == member_.self.pid) continue;
    if (pidfds_[r] >= 0) close(pidfds_[r]);
    pidfds_[r] = open_pidfd(pid);
    watched_[r] = who;
    // A pid number proves nothing: the process behind it may be another by now.
    const bool gone = pidfds_[r] < 0 ? errno == ESRCH : process_start_time(pid) != who.started;
    if (gone) report_death(r, pid, who.started, "the kernel knows no such process any more");
  }
}

// Rank 0 looks every quarter of the limit, so that a working writer never looks stuck; a second at most.
// Waking this thread for each call of the writer instead would cost more than the handoff itself.
int Liveness::next_timeout_ms() const {
  if (producer_ == nullptr) return -1;
  const std::uint64_t quarter = std::min(options_.layer_limit_ns, options_.writer_limit_ns) / 4;
  return static_cast<int>(std::clamp<std::uint64_t>(quarter / kMillisecond, 5, 1000));
}

void Liveness::beat() {
  if (producer_ == nullptr || !member_.control.has_extension()) return;
  const std::uint64_t since = producer_->writing_since_ns();
  if (since == 0) return;
  std::atomic_ref<std::uint64_t>(member_.control.peer(member_.rank).beats)
      .fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t spent = now_ns() - since;
  if (spent < options_.writer_limit_ns) return;
  Error error(Code::kTimeout, "the writer of " + member_.who(member_.rank) + " has been inside expert " +
                                  std::to_string(producer_->writing_expert()) + " for " +
                                  std::to_string(spent / kMillisecond) + " ms, its limit is " +
                                  std::to_string(options_.writer_limit_ns / kMillisecond) + " ms");
  error.expert = producer_->writing_expert();
  member_.fail(error);
}

void Liveness::loop() {
  pthread_setname_np(pthread_self(), "layercast-live");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals belong to the caller's threads
  std::vector<pollfd> fds;
  std::vector<std::size_t> ranks;
  while (!stop_.load(std::memory_order_acquire)) {
    watch_newcomers();
    beat();
    fds.assign(1, {wake_fd_, POLLIN, 0});
    ranks.clear();
    for (std::size_t r = 0; r < pidfds_.size(); ++r) {
      if (pidfds_[r] < 0) continue;
      fds.push_back({pidfds_[r], POLLIN, 0});
      ranks.push_back(r);
    }
    poll(fds.data(), fds.size(), next_timeout_ms());
    std::uint64_t drained;
    [[maybe_unused]] const ssize_t n = read(wake_fd_, &drained, sizeof drained);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if ((fds[i + 1].revents & POLLIN) == 0) continue;
      const Watched& who = watched_[ranks[i]];
      report_death(ranks[i], who.pid, who.started, "the kernel reports the end of its process");
      close(pidfds_[ranks[i]]);
      pidfds_[ranks[i]] = -1;  // said once; `watched_` keeps its pid
    }
  }
}

}  // namespace layercast
