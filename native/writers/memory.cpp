#include <cstring>
#include <string>

#include "error.h"
#include "writers/writers.h"

namespace layercast {

namespace {

class MemoryWriter final : public Writer {
 public:
  MemoryWriter(const std::byte* source, std::size_t experts, std::vector<std::size_t> kind_bytes,
               std::size_t ranks)
      : source_(source), experts_(experts), kind_bytes_(std::move(kind_bytes)), ranks_(ranks) {
    for (const std::size_t bytes : kind_bytes_) {
      kind_start_.push_back(share_);
      share_ += bytes;
    }
  }

  bool whole_experts() const override { return false; }
  bool parallel() const override { return true; }

  void check(std::int64_t, std::size_t, std::size_t ranks, std::span<const std::size_t> kind_bytes) override {
    if (ranks != ranks_) {
      refuse(Code::kArgument, "memory writer: its source is cut for " + std::to_string(ranks_) +
                                  " ranks, the group has " + std::to_string(ranks));
    }
    if (!std::equal(kind_bytes.begin(), kind_bytes.end(), kind_bytes_.begin(), kind_bytes_.end())) {
      refuse(Code::kArgument, "memory writer: its source has other kinds' sizes than the transport");
    }
  }

  void fill(const Piece& piece, const SlotView& slot) override {
    for (std::size_t r = 0; r < piece.ranks; ++r) fill_share(piece, slot, r);
  }

  void fill_share(const Piece& piece, const SlotView& slot, std::size_t rank) override {
    for (const Run& run : piece.runs) {
      const std::size_t share = (run.expert % experts_) * ranks_ + rank;
      std::memcpy(slot.address(rank, run), source_ + share * share_ + kind_start_[run.kind] + run.offset,
                  run.bytes);
    }
  }

 private:
  const std::byte* source_;
  std::size_t experts_;
  std::vector<std::size_t> kind_bytes_, kind_start_;
  std::size_t ranks_, share_ = 0;
};

class DirectWriter final : public Writer {
 public:
  bool whole_experts() const override { return false; }
  bool direct() const override { return true; }
  void check(std::int64_t, std::size_t, std::size_t, std::span<const std::size_t>) override {}
  void fill(const Piece&, const SlotView&) override {}
};

class FunctionWriter final : public Writer {
 public:
  FunctionWriter(WriterFunction function, void* user) : function_(function), user_(user) {}

  bool whole_experts() const override { return true; }
  void check(std::int64_t, std::size_t, std::size_t, std::span<const std::size_t>) override {}

  void fill(const Piece& piece, const SlotView& slot) override {
    pointers_.resize(piece.ranks * piece.kinds);
    for (std::size_t at = 0; at < piece.runs.size(); at += piece.kinds) {
      for (std::size_t r = 0; r < piece.ranks; ++r) {
        for (std::size_t k = 0; k < piece.kinds; ++k) {
          pointers_[r * piece.kinds + k] = slot.address(r, piece.runs[at + k]);
        }
      }
      const std::size_t expert = piece.runs[at].expert;
      const int failed = function_(user_, piece.layer, expert, piece.ranks, piece.kinds, pointers_.data());
      if (failed == 0) continue;
      Error error(Code::kWriter, "the writer's function returned " + std::to_string(failed) + " for expert " +
                                     std::to_string(expert) + " of layer " + std::to_string(piece.layer));
      error.expert = static_cast<std::int64_t>(expert);
      throw error;
    }
  }

 private:
  WriterFunction function_;
  void* user_;
  std::vector<void*> pointers_;
};

}  // namespace

std::unique_ptr<Writer> make_memory_writer(const std::byte* source, std::size_t source_bytes,
                                           std::size_t source_experts, std::vector<std::size_t> kind_bytes,
                                           std::size_t ranks) {
  if (source == nullptr) refuse(Code::kArgument, "memory writer: expected an address, got a null pointer");
  if (source_experts == 0 || ranks == 0)
    refuse(Code::kArgument, "memory writer: expected experts and ranks > 0");
  std::size_t needed = 0;
  for (const std::size_t bytes : kind_bytes) needed += bytes;
  if (needed == 0 || __builtin_mul_overflow(needed, source_experts * ranks, &needed) ||
      needed > source_bytes) {
    refuse(Code::kArgument, "memory writer: " + std::to_string(source_experts) + " experts for " +
                                std::to_string(ranks) + " ranks need " + std::to_string(needed) +
                                " bytes, the source has " + std::to_string(source_bytes));
  }
  return std::make_unique<MemoryWriter>(source, source_experts, std::move(kind_bytes), ranks);
}

std::unique_ptr<Writer> make_direct_writer() { return std::make_unique<DirectWriter>(); }

std::unique_ptr<Writer> make_function_writer(WriterFunction function, void* user) {
  if (function == nullptr)
    refuse(Code::kArgument, "function writer: expected an address, got a null pointer");
  return std::make_unique<FunctionWriter>(function, user);
}

}  // namespace layercast
