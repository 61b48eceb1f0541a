// Page-aligned host memory as a destination, shared by the devices that have no other.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "error.h"

namespace layercast {

class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() {
    for (const auto& [address, bytes] : owned_) munmap(address, bytes);
  }

  std::byte* allocate(std::size_t bytes, bool populate = true) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      refuse(Code::kResource,
             "host device: could not reserve " + std::to_string(bytes) + " bytes for a layer");
    }
    madvise(address, bytes, MADV_HUGEPAGE);  // fewer faults and TLB misses where the system allows it
    // Fault now, not in the first layer; older kernels do not know it.
    if (populate) madvise(address, bytes, kPopulateWrite);
    const std::lock_guard lock(mutex_);
    owned_.emplace_back(address, bytes);
    return static_cast<std::byte*>(address);
  }

  static void check(const std::byte* address, std::size_t bytes) {
    if (address == nullptr) refuse(Code::kArgument, "destination: expected an address, got a null pointer");
    if (bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(address)) {
      refuse(Code::kArgument, "destination: " + std::to_string(bytes) + " bytes overflow the address space");
    }
  }

 private:
  static constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
  std::mutex mutex_;
  std::vector<std::pair<void*, std::size_t>> owned_;
};

}  // namespace layercast
