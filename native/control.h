// The control block: create, attach, the cells by name, poison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "atomics.h"
#include "doorbell.h"
#include "error.h"
#include "layout.h"

namespace layercast {

struct Identity {
  std::uint64_t pid;
  std::uint64_t start_time;
  std::uint64_t pid_namespace;
};
// Of this process, asked once per call: a fork changes it.
Identity self_identity();
// Field 22 of /proc/PID/stat; 0 when there is no such process.
std::uint64_t process_start_time(std::uint64_t pid);
// Whether the process may still be there: no word of the kernel's says that it is not. A pid of another pid
// namespace says nothing here.
bool is_there(const Identity& who);
// Whether the process is stopped: SIGSTOP, a terminal, a debugger.
bool process_stopped(std::uint64_t pid);

class ControlBlock {
 public:
  // Writes a fresh region (T18: refused while a live rank is attached). Version 2 takes (8, 2) and tp_size
  // <= 8.
  static void initialize(void* base, std::size_t bytes, std::uint64_t tp_size, std::uint64_t version,
                         std::size_t ranks, std::size_t slots);

  // Checks what is there against what this rank was told; a mismatch names both.
  ControlBlock(void* base, std::size_t bytes, std::uint64_t tp_size);

  const Layout& layout() const { return layout_; }
  std::uint64_t version() const { return version_; }
  std::size_t tp_size() const { return tp_size_; }
  std::size_t slots() const { return layout_.slots; }
  bool has_extension() const { return has_extension_; }
  std::uint64_t generation() const;
  std::uint64_t membership() const;
  // A rank came or closed: whoever waits looks again.
  void membership_changed() const;

  std::uint64_t& cell(std::size_t offset, std::size_t index = 0) const {
    return *reinterpret_cast<std::uint64_t*>(base_ + offset + index * kCellBytes);
  }
  std::uint64_t& ready_sequence(std::size_t slot) const { return cell(layout_.ready, slot * kReadyCells); }
  std::uint64_t& ready_epoch(std::size_t slot) const { return cell(layout_.ready, slot * kReadyCells + 1); }
  std::uint64_t& ready_number(std::size_t slot) const { return cell(layout_.ready, slot * kReadyCells + 2); }
  std::uint64_t& ack(std::size_t rank, std::size_t slot) const {
    return cell(layout_.ack_sequence, rank * layout_.slots + slot);
  }
  PeerCell& peer(std::size_t rank) const { return at<PeerCell>(layout_.peers, rank); }
  WishCell& wishes(std::size_t rank) const { return at<WishCell>(layout_.wishes, rank); }
  LayerCell& layer_cell() const { return at<LayerCell>(layout_.layer_cell); }
  ErrorDetail& error_detail() const { return at<ErrorDetail>(layout_.error_detail); }
  std::uint64_t& checksum(std::size_t slot, std::size_t rank) const {
    return at<std::uint64_t>(layout_.checksums, slot * layout_.ranks + rank);
  }
  Doorbell bell(std::size_t rank, Bell which) const {
    return Doorbell(&at<DoorbellCell>(layout_.doorbells, rank * kBellsPerRank + which),
                    &at<ExtensionHeader>(layout_.extension).generation);
  }
  // A rank without identity rings no bell: what it writes must be polled (never slower than 200 us).
  bool is_foreign(std::size_t rank) const { return !has_extension_ || load_acquire(peer(rank).pid) == 0; }
  bool any_foreign() const;
  PeerState state(std::size_t rank) const;

  // Wakes every thread of every rank.
  void ring_all() const;
  // Wakes one kind of thread on every rank, behind one fence.
  void ring_each(Bell which) const;

  // The first failure wins the claim; false when another was first. Never blocks.
  bool poison(const Error& error) const;
  bool poisoned() const { return load_acquire(cell(layout_.poison_state)) != 0; }
  // The cause; waits at most 10 ms for a claimer that is still writing.
  std::optional<Error> failure() const;

  // A layer ends once: done by rank 0, given up by any rank, or failed as far as any rank has told its
  // caller, whichever decides first ("verdict"). Without an extension it can only be done.
  void open_layer(std::uint64_t epoch) const;
  bool close_layer(std::uint64_t epoch) const;                   // false: it has ended otherwise
  bool cancel_layer(std::uint64_t epoch, std::size_t by) const;  // false: it is not open
  void fail_layer(std::uint64_t epoch) const;
  // What became of it; nothing where the cell speaks of another epoch.
  std::optional<Verdict> verdict(std::uint64_t epoch) const;
  bool cancelled(std::uint64_t epoch) const { return verdict(epoch) == Verdict::kCancelled; }
  std::size_t cancelled_by() const { return load_acquire(layer_cell().verdict) >> 2 & (kMaxRanks - 1); }

  // A layer given up before rank 0 published it ("cancel wish": stored before a look at active_epoch, looked
  // for after active_epoch was stored). False: no room for one more.
  bool wish(std::size_t rank, std::uint64_t epoch) const;
  bool wished(std::uint64_t epoch) const;
  // The first epoch above `after` and below `before` that anybody gave up; 0: none.
  std::uint64_t next_wish(std::uint64_t after, std::uint64_t before) const;
  // Whoever gave it up; it must have been.
  std::size_t wished_by(std::uint64_t epoch) const;

  // Sum of all counters that move while a layer moves: only "changed" matters.
  std::uint64_t progress() const;

 private:
  static std::uint64_t verdict_of(std::uint64_t epoch, Verdict verdict, std::size_t by = 0) {
    return epoch << 8 | by << 2 | static_cast<std::uint64_t>(verdict);
  }
  template <class T>
  T& at(std::size_t offset, std::size_t index = 0) const {
    return *reinterpret_cast<T*>(base_ + offset + index * sizeof(T));
  }
  bool decide(std::uint64_t epoch, Verdict verdict, std::size_t by) const;
  Header& header() const { return at<Header>(0); }
  void adopt_extension(std::size_t bytes);

  std::byte* base_;
  Layout layout_{};
  std::uint64_t version_ = 0;
  std::size_t tp_size_ = 0;
  bool has_extension_ = false;
};

// At most `limit` bytes of `text`, cut on a character boundary, always valid UTF-8 (T28).
std::string cut_utf8(std::string_view text, std::size_t limit);

}  // namespace layercast
