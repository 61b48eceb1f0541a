// Memory of the pretended driver, and copies.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "driver.h"

using namespace layercast::cuda;

namespace {

// What one copy moves: rows of `width` bytes, each a pitch after the one before. Most copies are one row.
struct Rows {
  std::uintptr_t to, from;
  std::size_t width;
  std::size_t height = 1, to_pitch = 0, from_pitch = 0;
  std::size_t bytes() const { return width * height; }
  std::size_t to_extent() const { return (height - 1) * to_pitch + width; }
  std::size_t from_extent() const { return (height - 1) * from_pitch + width; }
  void copy() const {
    for (std::size_t row = 0; row < height; ++row) {
      std::memcpy(reinterpret_cast<void*>(to + row * to_pitch),
                  reinterpret_cast<const void*>(from + row * from_pitch), width);
    }
  }
};

// The device's side of a copy: waits for its turn on the bus, then moves the bytes as they are by then.
void move(Lock& lock, CUctx_st& context, const Rows& rows, bool over_the_bus) {
  Fake& state = fake();
  const std::uint64_t number = ++state.copies;
  if (number == state.hang_at) {
    state.changed.wait(lock, [&] { return state.hang_at != number || context.sticky != kSuccess; });
  }
  state.changed.wait(lock, [&] { return state.hold == 0 || context.sticky != kSuccess; });
  if (number == state.lost_at) context.sticky = kIllegalAddress;
  if (context.sticky != kSuccess) return;
  std::uint64_t due = now_ns() + state.latency_ns;
  if (over_the_bus && state.bytes_per_second > 0) {
    context.engine_free_ns =
        std::max(context.engine_free_ns, now_ns()) +
        static_cast<std::uint64_t>(1e9 * static_cast<double>(rows.bytes()) / state.bytes_per_second);
    due = context.engine_free_ns + state.latency_ns;
  }
  lock.unlock();
  rows.copy();
  if (const std::uint64_t now = now_ns(); now < due)
    std::this_thread::sleep_for(std::chrono::nanoseconds(due - now));
  lock.lock();
  state.copied_bytes += rows.bytes();
}

// Whether [address, address + bytes) lies in one live allocation of the context's device.
bool on_device(Fake& state, Address address, std::size_t bytes, const CUctx_st& context) {
  const Span* span = find(state.allocations, address);
  return span != nullptr && address + bytes <= span->end && span->ordinal == context.ordinal;
}

Result enqueue_copy(Fake& state, Lock& lock, const char* name, const Rows& rows, Stream handle,
                    bool to_device, bool from_device) {
  const auto stream = alive(state, handle, name);
  if (!stream) return kInvalidHandle;
  CUctx_st* context = stream->context;
  if (to_device && !on_device(state, rows.to, rows.to_extent(), *context)) {
    state.violations.push_back(std::string(name) + " to memory that is not this device's");
    return kInvalidValue;
  }
  if (from_device && !on_device(state, rows.from, rows.from_extent(), *context)) {
    state.violations.push_back(std::string(name) + " from memory that is not this device's");
    return kInvalidValue;
  }
  const bool bus = to_device != from_device;
  const std::uintptr_t host = to_device ? rows.from : rows.to;
  if (bus) {
    Span* first = find(state.registrations, host);
    Span* last = find(state.registrations, host + (to_device ? rows.from_extent() : rows.to_extent()) - 1);
    if (first != last) {
      state.violations.push_back(std::string(name) + " across the border of a registration");
      return kInvalidValue;
    }
    if (first == nullptr) {
      // Pageable memory: staged by the driver, done when the call returns.
      if (to_device) ++state.pageable_copies;
      state.changed.wait(lock, [&] { return stream->work.empty() && !stream->busy; });
      if (context->sticky == kSuccess) move(lock, *context, rows, true);
      return context->sticky;
    }
  }
  in_flight(state, rows.to, 1);
  in_flight(state, rows.from, 1);
  push(state, *stream, [=](Lock& held) {
    move(held, *context, rows, bus);
    in_flight(fake(), rows.to, -1);
    in_flight(fake(), rows.from, -1);
  });
  return kSuccess;
}

}  // namespace

API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  ENTER("cuMemGetInfo_v2", true);
  *total = std::size_t{8} << 30;
  *free = *total / 2;
  return kSuccess;
}

API cuMemAlloc_v2(Address* address, std::size_t bytes) {
  ENTER("cuMemAlloc_v2", true);
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<std::uintptr_t>(made);
  state.allocations[*address] = {*address, *address + bytes, current()->ordinal, 0};
  return kSuccess;
}

API cuMemFree_v2(Address address) {
  ENTER("cuMemFree_v2", true);
  const auto found = state.allocations.find(address);
  if (found == state.allocations.end()) return kInvalidValue;
  if (found->second.in_flight != 0) state.violations.emplace_back("cuMemFree while copies are in flight");
  munmap(reinterpret_cast<void*>(address), found->second.end - found->second.begin);
  state.allocations.erase(found);
  return kSuccess;
}

API cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned) {
  ENTER("cuMemHostRegister_v2", true);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto after = state.registrations.lower_bound(begin);
  if (find(state.registrations, begin) != nullptr ||
      (after != state.registrations.end() && after->first < begin + bytes)) {
    return kAlreadyRegistered;
  }
  state.registrations[begin] = {begin, begin + bytes, current()->ordinal, 0};
  return kSuccess;
}

API cuMemHostUnregister(void* address) {
  ENTER("cuMemHostUnregister", true);
  const auto found = state.registrations.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == state.registrations.end()) {
    state.violations.emplace_back("cuMemHostUnregister of memory that is not registered");
    return kNotRegistered;
  }
  if (found->second.in_flight != 0)
    state.violations.emplace_back("cuMemHostUnregister while copies are in flight");
  state.registrations.erase(found);
  return kSuccess;
}

API cuMemHostGetDevicePointer_v2(Address* there, void* here, unsigned) {
  ENTER("cuMemHostGetDevicePointer_v2", true);
  *there = reinterpret_cast<std::uintptr_t>(here);
  return find(state.registrations, *there) == nullptr ? kInvalidValue : kSuccess;
}

API cuPointerGetAttributes(unsigned count, int* attributes, void** data, Address address) {
  ENTER("cuPointerGetAttributes", true);
  const Span* device = find(state.allocations, address);
  const Span* host = find(state.registrations, address);
  const Span* found = device != nullptr ? device : host;
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] == kPointerMemoryType) {
      *static_cast<unsigned*>(data[i]) = device != nullptr ? kMemoryTypeDevice : host != nullptr ? 1 : 0;
    } else if (attributes[i] == kPointerDeviceOrdinal) {
      *static_cast<int*>(data[i]) = found == nullptr ? -2 : found->ordinal;
    } else if (attributes[i] == kPointerRangeStart) {
      *static_cast<Address*>(data[i]) = found == nullptr ? 0 : found->begin;
    } else if (attributes[i] == kPointerRangeSize) {
      *static_cast<std::size_t*>(data[i]) = found == nullptr ? 0 : found->end - found->begin;
    } else {
      return kInvalidValue;
    }
  }
  return kSuccess;
}

API cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream stream) {
  ENTER("cuMemcpyHtoDAsync_v2", true);
  return enqueue_copy(state, lock, "cuMemcpyHtoDAsync", {to, reinterpret_cast<std::uintptr_t>(from), bytes},
                      stream, true, false);
}

API cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream stream) {
  ENTER("cuMemcpyDtoHAsync_v2", true);
  return enqueue_copy(state, lock, "cuMemcpyDtoHAsync", {reinterpret_cast<std::uintptr_t>(to), from, bytes},
                      stream, false, true);
}

API cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream stream) {
  ENTER("cuMemcpyDtoDAsync_v2", true);
  return enqueue_copy(state, lock, "cuMemcpyDtoDAsync", {to, from, bytes}, stream, true, true);
}

API cuMemcpyBatchAsync_v2(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                          CUmemcpyAttributes_st*, std::size_t*, std::size_t, Stream stream) {
  ENTER("cuMemcpyBatchAsync_v2", true);
  for (std::size_t i = 0; i < count; ++i) {
    const Result result = enqueue_copy(state, lock, "cuMemcpyBatchAsync", {to[i], from[i], bytes[i]}, stream,
                                       true, find(state.allocations, from[i]) != nullptr);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D_st* given, Stream stream) {
  ENTER("cuMemcpy2DAsync_v2", true);
  Copy2D copy;
  std::memcpy(&copy, given, sizeof copy);
  const auto known = [](int type) { return type == kMemoryTypeHost || type == kMemoryTypeDevice; };
  if (!known(copy.from_type) || !known(copy.to_type) || copy.width == 0 || copy.height == 0 ||
      copy.from_pitch < copy.from_x + copy.width || copy.to_pitch < copy.to_x + copy.width) {
    return kInvalidValue;
  }
  const bool from_device = copy.from_type == kMemoryTypeDevice, to_device = copy.to_type == kMemoryTypeDevice;
  if (!from_device && !to_device) {
    state.violations.emplace_back("cuMemcpy2DAsync that no device takes part in");
    return kInvalidValue;
  }
  const Address from = from_device ? copy.from_device : reinterpret_cast<std::uintptr_t>(copy.from_host);
  const Address to = to_device ? copy.to_device : reinterpret_cast<std::uintptr_t>(copy.to_host);
  const Rows rows{to + copy.to_y * copy.to_pitch + copy.to_x,
                  from + copy.from_y * copy.from_pitch + copy.from_x,
                  copy.width,
                  copy.height,
                  copy.to_pitch,
                  copy.from_pitch};
  return enqueue_copy(state, lock, "cuMemcpy2DAsync", rows, stream, to_device, from_device);
}
