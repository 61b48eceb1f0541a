// Every shared byte. The contract with other implementations is version 2: 8 ranks, 2 slots, these exact
// offsets.
//
//   header | poison, error_* | active_epoch .. producer_done_epoch | join, consumer_done, wait_returned
//   [rank] | ready[slot]{sequence, epoch, number} | ack_sequence[rank][slot] | times | h2d_ns[rank] |
//   bytes[rank] | extension: header, error detail, layer | doorbell[rank][2] | peer[rank] |
//   checksum[slot][rank] | wishes[rank]
//
// All cells are 64 bytes, a cache line, a little-endian uint64 at offset 0. Other instances than (8 ranks, 2
// slots) have the same cells in the same order; they carry version 3 and their ranks and slots in the header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace layercast {

inline constexpr std::size_t kCellBytes = 64;
inline constexpr std::size_t kMessageBytes = 256;
inline constexpr std::uint64_t kMagic = 0x4b544650384c5731;           // "KTFP8LW1"
inline constexpr std::uint64_t kExtensionMagic = 0x4c43455854303031;  // "LCEXT001"
inline constexpr std::uint64_t kVersionExperts = 2;                   // a slot holds one expert
inline constexpr std::uint64_t kVersionPieces = 3;                    // a slot holds one piece of the layer
inline constexpr std::size_t kVersion2Ranks = 8;
inline constexpr std::size_t kVersion2Slots = 2;
inline constexpr std::size_t kVersion2RegionBytes = 8192;
inline constexpr std::size_t kMaxRanks = 64;
inline constexpr std::size_t kMaxSlots = 256;

struct Header {
  std::uint64_t magic;  // stored last with release ("identity"), loaded first with acquire
  std::uint64_t version;
  std::uint64_t struct_bytes;
  std::uint64_t tp_size;
  std::uint64_t ranks;  // version 3 only; padding in version 2
  std::uint64_t slots;  // version 3 only; padding in version 2
  std::uint64_t padding[2];
};
static_assert(sizeof(Header) == kCellBytes, "the header is one cell; bump the version when it grows");

// A 32-bit futex word and the number of threads asleep on it.
struct alignas(kCellBytes) DoorbellCell {
  std::uint32_t word;
  std::uint32_t sleepers;
};
static_assert(sizeof(DoorbellCell) == kCellBytes);

// Who a rank is. All zero: a foreign version-2 rank, or one that has not come yet.
struct alignas(kCellBytes) PeerCell {
  std::uint64_t pid;            // stored last with release ("peer identity")
  std::uint64_t start_time;     // clock ticks since boot, field 22 of /proc/PID/stat
  std::uint64_t pid_namespace;  // inode of /proc/self/ns/pid: a pid says nothing in another one
  std::uint32_t state;          // PeerState
  std::uint32_t phase;          // Phase: what it does right now
  std::uint64_t beats;          // heartbeats of a working writer; only "changed" matters
  std::int64_t layer;           // its arguments of join, for messages
  std::uint64_t expert_count;
  std::uint64_t padding;
};
static_assert(sizeof(PeerCell) == kCellBytes);

enum class PeerState : std::uint32_t { kAbsent = 0, kAttached = 1, kClosed = 2 };
enum class Phase : std::uint32_t { kIdle = 0, kJoining, kWriting, kSlotWait, kAckWait, kWaiting, kClosing };

struct ExtensionHeader {
  std::uint64_t magic;  // compare-and-swapped from 0 by the first that attaches; zeroes are a valid extension
  std::uint64_t generation;  // how often the region was initialised
  std::uint64_t membership;  // grows whenever a rank attaches or closes
  std::uint64_t padding[5];
};
static_assert(sizeof(ExtensionHeader) == kCellBytes);

// What error_* of version 2 has no room for; written by the claimer before poison_state.
struct ErrorDetail {
  std::uint64_t pid;
  std::uint64_t epoch;
  std::int64_t layer;
  std::int64_t expert;
  std::uint64_t present;  // 1 when this library wrote the poison
  std::uint64_t padding[3];
};
static_assert(sizeof(ErrorDetail) == kCellBytes);

// What else there is to know about the active layer.
struct LayerCell {
  std::uint64_t whole_experts;  // 1: pieces hold whole experts ("piece": before the first ready.sequence)
  std::uint64_t direct;         // 1: every rank copies from its own arena, nothing passes the slots ("piece")
  std::uint64_t selection;      // digest of the experts meant ("epoch": before active_epoch)
  std::uint64_t verdict;        // epoch << 8 | who gave it up << 2 | Verdict: how it ends is decided once
  std::uint64_t paired;         // bit k: the halves of kind k are cut together ("piece")
  std::uint64_t padding[3];
};
static_assert(sizeof(LayerCell) == kCellBytes);

enum class Verdict : std::uint64_t { kFailed = 0, kOpen = 1, kDone = 2, kCancelled = 3 };
static_assert(kMaxRanks <= 64, "the verdict has six bits for who gave the layer up");

// Epochs that a rank has given up before rank 0 published them; a place is free when its epoch is over.
inline constexpr std::size_t kWishes = 8;
struct alignas(kCellBytes) WishCell {
  std::uint64_t epochs[kWishes];
};
static_assert(sizeof(WishCell) == kCellBytes);

enum Bell : std::size_t { kCallerBell = 0, kConsumerBell = 1, kBellsPerRank = 2 };
inline constexpr std::size_t kReadyCells = 3;  // sequence, epoch, number

// Byte offsets of one instance.
struct Layout {
  std::size_t ranks, slots;
  std::size_t poison_state, error_code, error_rank, error_message;
  std::size_t active_epoch, layer_id, expert_count, next_sequence, producer_done_epoch;
  std::size_t join_epoch, consumer_done_epoch, wait_returned_epoch;
  std::size_t ready, ack_sequence;
  std::size_t layer_start_ns, writer_ns, slot_wait_ns, producer_total_ns, h2d_ns, bytes;
  std::size_t struct_bytes;
  std::size_t extension, error_detail, layer_cell, doorbells, peers, checksums, wishes, region_bytes;
};

constexpr Layout layout_of(std::size_t ranks, std::size_t slots) {
  Layout l{};
  std::size_t at = sizeof(Header);
  auto take = [&at](std::size_t cells) {
    const std::size_t here = at;
    at += cells * kCellBytes;
    return here;
  };
  l.ranks = ranks;
  l.slots = slots;
  l.poison_state = take(1);
  l.error_code = take(1);
  l.error_rank = take(1);
  l.error_message = take(kMessageBytes / kCellBytes);
  l.active_epoch = take(1);
  l.layer_id = take(1);
  l.expert_count = take(1);
  l.next_sequence = take(1);
  l.producer_done_epoch = take(1);
  l.join_epoch = take(ranks);
  l.consumer_done_epoch = take(ranks);
  l.wait_returned_epoch = take(ranks);
  l.ready = take(slots * kReadyCells);
  l.ack_sequence = take(ranks * slots);
  l.layer_start_ns = take(1);
  l.writer_ns = take(1);
  l.slot_wait_ns = take(1);
  l.producer_total_ns = take(1);
  l.h2d_ns = take(ranks);
  l.bytes = take(ranks);
  l.struct_bytes = at;
  l.extension = take(1);
  l.error_detail = take(1);
  l.layer_cell = take(1);
  l.doorbells = take(ranks * kBellsPerRank);
  l.peers = take(ranks);
  l.checksums = at;  // [slot][rank], uint64 close together: rank 0 writes, each consumer reads its own
  take((slots * ranks * sizeof(std::uint64_t) + kCellBytes - 1) / kCellBytes);
  l.wishes = take(ranks);
  l.region_bytes = at;
  return l;
}

// Version 2, byte for byte. A change here is not a change of ours to make.
namespace version2 {
inline constexpr Layout kLayout = layout_of(kVersion2Ranks, kVersion2Slots);
#define LAYERCAST_V2(field, offset) static_assert(kLayout.field == (offset), "version 2 fixes " #field)
LAYERCAST_V2(poison_state, 64);
LAYERCAST_V2(error_code, 128);
LAYERCAST_V2(error_rank, 192);
LAYERCAST_V2(error_message, 256);
LAYERCAST_V2(active_epoch, 512);
LAYERCAST_V2(layer_id, 576);
LAYERCAST_V2(expert_count, 640);
LAYERCAST_V2(next_sequence, 704);
LAYERCAST_V2(producer_done_epoch, 768);
LAYERCAST_V2(join_epoch, 832);
LAYERCAST_V2(consumer_done_epoch, 1344);
LAYERCAST_V2(wait_returned_epoch, 1856);
LAYERCAST_V2(ready, 2368);
LAYERCAST_V2(ack_sequence, 2752);
LAYERCAST_V2(layer_start_ns, 3776);
LAYERCAST_V2(writer_ns, 3840);
LAYERCAST_V2(slot_wait_ns, 3904);
LAYERCAST_V2(producer_total_ns, 3968);
LAYERCAST_V2(h2d_ns, 4032);
LAYERCAST_V2(bytes, 4544);
LAYERCAST_V2(struct_bytes, 5056);
#undef LAYERCAST_V2
static_assert(offsetof(Header, magic) == 0 && offsetof(Header, version) == 8);
static_assert(offsetof(Header, struct_bytes) == 16 && offsetof(Header, tp_size) == 24);
static_assert(kLayout.region_bytes <= kVersion2RegionBytes, "the extension must fit behind version 2");
}  // namespace version2

}  // namespace layercast
