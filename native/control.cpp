#include "control.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clock.h"
#include "fault.h"

namespace layercast {

namespace {

constexpr std::uint64_t kClaimed = ~0ull;
constexpr std::uint64_t kPoisoned = 1;

void check_region(const void* base, std::size_t bytes, std::size_t needed) {
  if (base == nullptr) refuse(Code::kArgument, "control region: expected an address, got a null pointer");
  if (reinterpret_cast<std::uintptr_t>(base) % kCellBytes != 0) {
    refuse(Code::kArgument, "control region: expected an address on a 64-byte boundary, got one that is " +
                                std::to_string(reinterpret_cast<std::uintptr_t>(base) % kCellBytes) +
                                " past it");
  }
  if (bytes < needed) {
    refuse(Code::kArgument, "control region: expected at least " + std::to_string(needed) + " bytes, got " +
                                std::to_string(bytes));
  }
}

[[noreturn]] void mismatch(const char* what, std::uint64_t region, std::uint64_t own) {
  refuse(Code::kProtocol, std::string("control region: its ") + what + " is " + std::to_string(region) +
                              ", this rank expects " + std::to_string(own));
}

// Length of the UTF-8 character at `text[i]`, 0 when the bytes are none.
std::size_t character_bytes(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  if (lead < 0x80) return 1;
  const std::size_t n = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : (lead & 0xF0) == 0xE0        ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (n == 0 || i + n > text.size()) return 0;
  for (std::size_t k = 1; k < n; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F;
  return overlong || surrogate || (lead == 0xF4 && second > 0x8F) ? 0 : n;
}

}  // namespace

std::string cut_utf8(std::string_view text, std::size_t limit) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = text[i] == '\0' ? 0 : character_bytes(text, i);
    if (out.size() + (n == 0 ? 1 : n) > limit) break;
    if (n == 0) {
      out.push_back('?');
      ++i;
    } else {
      out.append(text.substr(i, n));
      i += n;
    }
  }
  return out;
}

namespace {

// /proc/PID/stat from behind the command's name on, which may hold blanks and parentheses; empty: no such
// process.
std::string process_stat(const std::string& pid) {
  std::FILE* file = std::fopen(("/proc/" + pid + "/stat").c_str(), "re");
  if (file == nullptr) return {};
  char text[1024];
  const std::size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[n] = '\0';
  const char* at = std::strrchr(text, ')');
  return at == nullptr ? std::string() : std::string(at);
}

// Field 22.
std::uint64_t start_time(const std::string& stat) {
  const char* at = stat.empty() ? nullptr : stat.c_str();
  for (int field = 2; field < 22 && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at + 1, nullptr, 10);
}

}  // namespace

bool process_stopped(std::uint64_t pid) {
  const std::string stat = process_stat(std::to_string(pid));
  return stat.size() > 2 && (stat[2] == 'T' || stat[2] == 't');
}

std::uint64_t process_start_time(std::uint64_t pid) { return start_time(process_stat(std::to_string(pid))); }

Identity self_identity() {
  struct stat info{};
  const bool known = stat("/proc/self/ns/pid", &info) == 0;
  // /proc may be another pid namespace's: only "self" is sure to be this process.
  return {static_cast<std::uint64_t>(getpid()), start_time(process_stat("self")),
          known ? static_cast<std::uint64_t>(info.st_ino) : 0};
}

bool is_there(const Identity& who) {
  return who.pid_namespace != self_identity().pid_namespace || who.pid_namespace == 0 ||
         process_start_time(who.pid) == who.start_time;
}

void ControlBlock::initialize(void* base, std::size_t bytes, std::uint64_t tp_size, std::uint64_t version,
                              std::size_t ranks, std::size_t slots) {
  const bool is_version2 = version == kVersionExperts;
  if (is_version2) ranks = kVersion2Ranks, slots = kVersion2Slots;
  if (version != kVersionExperts && version != kVersionPieces) {
    refuse(Code::kArgument, "control region: expected version 2 or 3, got " + std::to_string(version));
  }
  if (ranks < 1 || ranks > kMaxRanks || slots < 1 || slots > kMaxSlots) {
    refuse(Code::kArgument, "control region: expected 1.." + std::to_string(kMaxRanks) + " ranks and 1.." +
                                std::to_string(kMaxSlots) + " slots, got " + std::to_string(ranks) + " and " +
                                std::to_string(slots));
  }
  if (tp_size < 1 || tp_size > ranks) {
    refuse(Code::kArgument,
           "tp_size: expected 1.." + std::to_string(ranks) + ", got " + std::to_string(tp_size));
  }
  const Layout layout = layout_of(ranks, slots);
  check_region(base, bytes, is_version2 ? kVersion2RegionBytes : layout.region_bytes);

  auto* bytes_of = static_cast<std::byte*>(base);
  auto& header = *reinterpret_cast<Header*>(bytes_of);
  auto& extension = *reinterpret_cast<ExtensionHeader*>(bytes_of + layout.extension);
  std::uint64_t generation = 1;
  const bool same_shape = load_acquire(header.magic) == kMagic && header.struct_bytes == layout.struct_bytes;
  if (same_shape && load_acquire(extension.magic) == kExtensionMagic) {
    generation = load_relaxed(extension.generation) + 1;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto& peer = *reinterpret_cast<PeerCell*>(bytes_of + layout.peers + r * sizeof(PeerCell));
      const std::uint64_t pid = load_acquire(peer.pid);
      const bool open = pid != 0 && std::atomic_ref<const std::uint32_t>(peer.state).load() ==
                                        static_cast<std::uint32_t>(PeerState::kAttached);
      if (open && is_there({pid, peer.start_time, peer.pid_namespace})) {
        refuse(Code::kState, "control region: rank " + std::to_string(r) + " (pid " + std::to_string(pid) +
                                 ") still has it open; close every transport before initialising it again");
      }
    }
  }
  store_release(header.magic, 0);
  std::memset(bytes_of + sizeof(Header::magic), 0, layout.region_bytes - sizeof(Header::magic));
  header.version = version;
  header.struct_bytes = layout.struct_bytes;
  header.tp_size = tp_size;
  if (!is_version2) header.ranks = ranks, header.slots = slots;
  *reinterpret_cast<std::uint64_t*>(bytes_of + layout.error_rank) = ~0ull;
  extension.generation = generation;
  store_release(extension.magic, kExtensionMagic);
  store_release(header.magic, kMagic);  // "identity": all of the above
}

ControlBlock::ControlBlock(void* base, std::size_t bytes, std::uint64_t tp_size)
    : base_(static_cast<std::byte*>(base)), tp_size_(tp_size) {
  check_region(base, bytes, sizeof(Header));
  const std::uint64_t magic = load_acquire(header().magic);  // "identity"
  if (magic == 0)
    refuse(Code::kProtocol, "control region: nobody has initialised it; rank 0 does that first");
  if (magic != kMagic) mismatch("magic", magic, kMagic);
  version_ = header().version;
  if (version_ == kVersionExperts) {
    layout_ = version2::kLayout;
  } else if (version_ == kVersionPieces) {
    const std::uint64_t ranks = header().ranks, slots = header().slots;
    if (ranks < 1 || ranks > kMaxRanks || slots < 1 || slots > kMaxSlots) {
      refuse(Code::kProtocol, "control region: its header says " + std::to_string(ranks) + " ranks and " +
                                  std::to_string(slots) + " slots, which no creator writes");
    }
    layout_ = layout_of(ranks, slots);
  } else {
    refuse(Code::kProtocol,
           "control region: its version is " + std::to_string(version_) + ", this rank understands 2 and 3");
  }
  if (header().struct_bytes != layout_.struct_bytes) {
    mismatch("struct_bytes", header().struct_bytes, layout_.struct_bytes);
  }
  if (header().tp_size != tp_size) mismatch("tp_size", header().tp_size, tp_size);
  check_region(base, bytes, layout_.struct_bytes);
  adopt_extension(bytes);
}

void ControlBlock::adopt_extension(std::size_t bytes) {
  if (bytes < layout_.region_bytes) return;
  auto& extension = at<ExtensionHeader>(layout_.extension);
  std::uint64_t seen = 0;
  // A creator that knows no extension left zeroes, and zeroes are a valid extension.
  std::atomic_ref<std::uint64_t> magic(extension.magic);
  has_extension_ = magic.compare_exchange_strong(seen, kExtensionMagic) || seen == kExtensionMagic;
}

std::uint64_t ControlBlock::generation() const {
  return has_extension_ ? load_acquire(at<ExtensionHeader>(layout_.extension).generation) : 0;
}

std::uint64_t ControlBlock::membership() const {
  return has_extension_ ? load_acquire(at<ExtensionHeader>(layout_.extension).membership) : 0;
}

void ControlBlock::membership_changed() const {
  if (!has_extension_) return;
  std::atomic_ref<std::uint64_t>(at<ExtensionHeader>(layout_.extension).membership).fetch_add(1);
  ring_all();
}

PeerState ControlBlock::state(std::size_t rank) const {
  if (!has_extension_) return PeerState::kAbsent;
  return static_cast<PeerState>(
      std::atomic_ref<std::uint32_t>(peer(rank).state).load(std::memory_order_acquire));
}

bool ControlBlock::any_foreign() const {
  for (std::size_t r = 0; r < tp_size_; ++r) {
    if (is_foreign(r)) return true;
  }
  return false;
}

void ControlBlock::ring_all() const {
  if (!has_extension_) return;
  // Callers first: somebody waits for what they will say.
  for (std::size_t r = 0; r < tp_size_; ++r) bell(r, kCallerBell).wake();
  for (std::size_t r = 0; r < tp_size_; ++r) bell(r, kConsumerBell).wake();
}

void ControlBlock::ring_each(Bell which) const {
  if (!has_extension_) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (std::size_t r = 0; r < tp_size_; ++r) bell(r, which).ring_after_fence();
}

bool ControlBlock::poison(const Error& error) const {
  std::uint64_t healthy = 0;
  std::atomic_ref<std::uint64_t> state(cell(layout_.poison_state));
  if (!state.compare_exchange_strong(healthy, kClaimed)) return false;
  store_relaxed(cell(layout_.error_code), static_cast<std::uint64_t>(error.code));
  store_relaxed(cell(layout_.error_rank), static_cast<std::uint64_t>(error.rank));
  const std::string text = cut_utf8(error.message, kMessageBytes - 1);
  std::memcpy(base_ + layout_.error_message, text.c_str(), text.size() + 1);
  if (has_extension_) {
    ErrorDetail& detail = error_detail();
    detail.pid = error.pid;
    detail.epoch = error.epoch;
    detail.layer = error.layer;
    detail.expert = error.expert;
    detail.present = 1;
  }
  state.store(kPoisoned, std::memory_order_release);  // "poison": error_* and the detail
  ring_all();
  return true;
}

std::optional<Error> ControlBlock::failure() const {
  const std::uint64_t deadline = now_ns() + 10 * kMillisecond;
  std::uint64_t state;
  while ((state = load_acquire(cell(layout_.poison_state))) == kClaimed && now_ns() < deadline) {  // "poison"
    usleep(100);
  }
  if (state == 0) return std::nullopt;
  if (state == kClaimed) {
    Error error(Code::kProtocol,
                "a rank failed and could not say why: it stopped while it reported its failure");
    error.from_group = true;
    return error;
  }
  const char* text = reinterpret_cast<const char*>(base_ + layout_.error_message);
  const std::string_view raw(text, strnlen(text, kMessageBytes - 1));
  Error error(static_cast<Code>(load_relaxed(cell(layout_.error_code))), cut_utf8(raw, kMessageBytes - 1));
  error.rank = static_cast<std::int64_t>(load_relaxed(cell(layout_.error_rank)));
  error.from_group = true;
  if (has_extension_ && error_detail().present == 1) {
    const ErrorDetail& detail = error_detail();
    error.pid = detail.pid;
    error.epoch = detail.epoch;
    error.layer = detail.layer;
    error.expert = detail.expert;
  }
  return error;
}

void ControlBlock::open_layer(std::uint64_t epoch) const {
  if (has_extension_) store_release(layer_cell().verdict, verdict_of(epoch, Verdict::kOpen));
}

std::optional<Verdict> ControlBlock::verdict(std::uint64_t epoch) const {
  if (!has_extension_) return std::nullopt;
  const std::uint64_t seen = load_acquire(layer_cell().verdict);  // "verdict"
  if (seen == 0 || seen >> 8 != (epoch & ~0ull >> 8)) return std::nullopt;
  return static_cast<Verdict>(seen & 3);
}

// From open to anything else, once. The rank is part of the word: a rank that was held up between its look
// and a store of its own would otherwise name itself in a later layer.
bool ControlBlock::decide(std::uint64_t epoch, Verdict verdict, std::size_t by) const {
  std::uint64_t seen = verdict_of(epoch, Verdict::kOpen);
  LAYERCAST_PAUSE_POINT();
  return std::atomic_ref<std::uint64_t>(layer_cell().verdict)
      .compare_exchange_strong(seen, verdict_of(epoch, verdict, by));
}

bool ControlBlock::close_layer(std::uint64_t epoch) const {
  return !has_extension_ || decide(epoch, Verdict::kDone, 0);
}

bool ControlBlock::cancel_layer(std::uint64_t epoch, std::size_t by) const {
  if (!has_extension_ || !decide(epoch, Verdict::kCancelled, by)) return false;
  ring_all();
  return true;
}

void ControlBlock::fail_layer(std::uint64_t epoch) const {
  if (has_extension_) decide(epoch, Verdict::kFailed, 0);
}

bool ControlBlock::wish(std::size_t rank, std::uint64_t epoch) const {
  // Rank 0 may still be looking for the epoch that it has just published: only what lies before is over.
  const std::uint64_t active = load_acquire(cell(layout_.active_epoch));
  std::uint64_t* place = nullptr;
  for (std::uint64_t& one : wishes(rank).epochs) {
    const std::uint64_t held = load_relaxed(one);
    if (held == epoch) return true;
    if (held == 0 || held < active) place = &one;
  }
  if (place == nullptr) return false;
  store_release(*place, epoch);
  return true;
}

bool ControlBlock::wished(std::uint64_t epoch) const { return next_wish(epoch - 1, epoch + 1) == epoch; }

std::uint64_t ControlBlock::next_wish(std::uint64_t after, std::uint64_t before) const {
  std::uint64_t first = 0;
  for (std::size_t r = 0; has_extension_ && r < tp_size_; ++r) {
    for (const std::uint64_t& one : wishes(r).epochs) {
      const std::uint64_t held = load_acquire(one);
      if (held > after && held < before && (first == 0 || held < first)) first = held;
    }
  }
  return first;
}

std::size_t ControlBlock::wished_by(std::uint64_t epoch) const {
  for (std::size_t r = 0; r < tp_size_; ++r) {
    for (const std::uint64_t& one : wishes(r).epochs) {
      if (load_acquire(one) == epoch) return r;
    }
  }
  return 0;
}

std::uint64_t ControlBlock::progress() const {
  std::uint64_t sum = load_relaxed(cell(layout_.active_epoch)) + load_relaxed(cell(layout_.next_sequence)) +
                      load_relaxed(cell(layout_.producer_done_epoch));
  for (std::size_t r = 0; r < tp_size_; ++r) {
    sum += load_relaxed(cell(layout_.join_epoch, r)) + load_relaxed(cell(layout_.consumer_done_epoch, r));
    sum += load_relaxed(cell(layout_.bytes, r));
    for (std::size_t s = 0; s < layout_.slots; ++s) sum += load_relaxed(ack(r, s));
    if (has_extension_) sum += load_relaxed(peer(r).beats);
  }
  return sum;
}

}  // namespace layercast
