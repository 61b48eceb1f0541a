#include "devices/cuda_pins.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "threads.h"

namespace layercast::cuda {

namespace {

constexpr std::size_t kChunkBytes = 256 << 20;
constexpr std::size_t kThreads = 4;  // the kernel's part is mostly one lock: more would only wait for it

std::string memlock() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
}

}  // namespace

void Pins::add(std::byte* address, std::size_t bytes) {
  std::vector<Chunk> chunks;
  for (std::size_t at = 0; at < bytes; at += kChunkBytes) {
    chunks.push_back({address + at, std::min(kChunkBytes, bytes - at)});
  }
  register_all(chunks);
  const bool whole = std::all_of(chunks.begin(), chunks.end(), [](const Chunk& c) { return c.pinned(); });
  if (!whole && strict_) {
    unregister(chunks);
    refuse(Code::kResource, words(chunks));
  }
  const std::lock_guard lock(mutex_);
  if (!whole) failure_ = words(chunks);
  for (const Chunk& chunk : chunks) borders_[chunk.address] = chunk.address + chunk.bytes;
  order_.push_back(address);
  pins_[address] = std::move(chunks);
}

void Pins::register_all(std::vector<Chunk>& chunks) const {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    Context popped = nullptr;
    const Driver& driver = primary_.driver();
    const Result current = driver.cuCtxPushCurrent_v2(primary_.context());
    for (std::size_t i = 0; !failed && (i = next++) < chunks.size();) {
      Chunk& chunk = chunks[i];
      chunk.result = current != kSuccess
                         ? current
                         : driver.cuMemHostRegister_v2(chunk.address, chunk.bytes, kHostRegisterPortable);
      if (!chunk.pinned()) failed = true;
    }
    if (current == kSuccess) static_cast<void>(driver.cuCtxPopCurrent_v2(&popped));
  };
  std::vector<std::thread> threads;
  for (std::size_t t = 1; t < std::min(kThreads, chunks.size()); ++t) {
    threads.emplace_back([&] {
      name_thread("layercast-pin");
      work();
    });
  }
  work();
  for (std::thread& thread : threads) thread.join();
}

std::string Pins::words(const std::vector<Chunk>& chunks) const {
  std::size_t bytes = 0, pinned = 0;
  const Chunk* failed = nullptr;
  for (const Chunk& chunk : chunks) {
    bytes += chunk.bytes;
    if (chunk.pinned()) {
      pinned += chunk.bytes;
    } else if (failed == nullptr && chunk.result != kNotReady) {
      failed = &chunk;
    }
  }
  const Result result = failed == nullptr ? kUnknown : failed->result;
  return "cuda device " + std::to_string(primary_.ordinal()) + " (" + primary_.name() +
         "): " + std::to_string(bytes) + " bytes of host memory could not be pinned, " +
         std::to_string(pinned) +
         " of them could: cuMemHostRegister failed: " + primary_.driver().words(result) +
         "; the limit for locked memory (memlock) is " + memlock();
}

void Pins::unregister(const std::vector<Chunk>& chunks) const noexcept {
  const Driver& driver = primary_.driver();
  Context popped = nullptr;
  if (driver.cuCtxPushCurrent_v2(primary_.context()) != kSuccess) return;
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    // On a device that has fallen off it fails; the kernel lets go with the process.
    if (chunk->ours()) static_cast<void>(driver.cuMemHostUnregister(chunk->address));
  }
  static_cast<void>(driver.cuCtxPopCurrent_v2(&popped));
}

void Pins::remove(std::byte* address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pins_.find(address);
  if (found == pins_.end()) return;
  unregister(found->second);
  for (const Chunk& chunk : found->second) borders_.erase(chunk.address);
  pins_.erase(found);
  std::erase(order_, address);
}

void Pins::remove_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto address = order_.rbegin(); address != order_.rend(); ++address) unregister(pins_.at(*address));
  order_.clear();
  pins_.clear();
  borders_.clear();
}

Device::Pinned Pins::count() const {
  const std::lock_guard lock(mutex_);
  Device::Pinned out;
  for (const auto& [address, chunks] : pins_) {
    for (const Chunk& chunk : chunks) (chunk.pinned() ? out.pinned : out.unpinned) += chunk.bytes;
  }
  out.failure = failure_;
  return out;
}

void Pins::split(std::span<const Copy> copies, std::vector<Copy>& parts) const {
  const std::lock_guard lock(mutex_);
  parts.clear();
  for (Copy copy : copies) {
    while (copy.bytes != 0) {
      std::size_t bytes = copy.bytes;
      const auto after = borders_.upper_bound(copy.from);
      if (after != borders_.end()) {
        bytes = std::min(bytes, static_cast<std::size_t>(after->first - copy.from));
      }
      if (after != borders_.begin()) {
        const std::byte* end = std::prev(after)->second;
        if (copy.from < end) bytes = std::min(bytes, static_cast<std::size_t>(end - copy.from));
      }
      parts.push_back({copy.from, copy.to, bytes});
      copy = {copy.from + bytes, copy.to + bytes, copy.bytes - bytes};
    }
  }
}

}  // namespace layercast::cuda
