// A CUDA driver without a GPU: host memory as device memory, a worker thread per stream, copies that happen
// later. It holds the caller to the rules that the real one may or may not notice. See state.h; tests steer
// it through the fake_cuda_* functions or $FAKE_CUDA.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

using namespace layercast::cuda;

namespace {

thread_local std::vector<CUctx_st*> current_contexts;

CUctx_st* current() { return current_contexts.empty() ? nullptr : current_contexts.back(); }

// Every function begins here: counted, logged, injected errors, the process and the device's own state.
Result enter(Fake& state, const char* name, bool needs_context, bool needs_init = true) {
  const std::uint64_t n = ++state.calls[name];
  state.log.emplace_back(name);
  if (needs_init && state.initialised_by != getpid()) return kNotInitialized;
  if (const auto found = state.failing.find(name); found != state.failing.end() && found->second.nth == n) {
    return found->second.code;
  }
  if (!needs_context) return kSuccess;
  if (current() == nullptr) {
    state.violations.push_back(std::string(name) + " without a current context");
    return kInvalidContext;
  }
  return current()->sticky;
}

#define ENTER(name, needs_context) \
  Fake& state = fake();            \
  Lock lock(state.mutex);          \
  if (const Result entered = enter(state, name, needs_context); entered != kSuccess) return entered

Span* find(std::map<std::uintptr_t, Span>& spans, std::uintptr_t address) {
  auto after = spans.upper_bound(address);
  if (after == spans.begin()) return nullptr;
  Span& span = std::prev(after)->second;
  return address < span.end ? &span : nullptr;
}

void work(std::shared_ptr<CUstream_st> stream) {
  Fake& state = fake();
  Lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return stream->closing || !stream->work.empty(); });
    if (stream->work.empty()) return;
    auto item = std::move(stream->work.front());
    stream->work.pop_front();
    stream->busy = true;
    if (stream->context->sticky == kSuccess) item(lock);
    stream->busy = false;
    state.changed.notify_all();
  }
}

std::shared_ptr<CUstream_st> make_stream(CUctx_st* context) {
  auto stream = std::make_shared<CUstream_st>();
  stream->context = context;
  stream->worker = std::thread(work, stream);
  stream->worker.detach();
  return stream;
}

// The handle's stream, or nothing (and a broken rule) where it is not alive.
std::shared_ptr<CUstream_st> alive(Fake& state, Stream handle, const char* function) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    CUctx_st* context = current();
    if (!context->legacy) context->legacy = make_stream(context);
    return context->legacy;
  }
  const auto found = state.streams.find(handle);
  if (found != state.streams.end()) return found->second;
  state.violations.push_back(std::string(function) + " on a stream that is not alive");
  return nullptr;
}

std::shared_ptr<CUevent_st> alive(Fake& state, Event handle, const char* function) {
  const auto found = state.events.find(handle);
  if (found != state.events.end()) return found->second;
  state.violations.push_back(std::string(function) + " on an event that is not alive");
  return nullptr;
}

void push(Fake& state, CUstream_st& stream, std::function<void(Lock&)> item) {
  stream.work.push_back(std::move(item));
  state.changed.notify_all();
}

// The device's side of a copy: waits for its turn on the bus, then moves the bytes as they are by then.
void move(Lock& lock, CUctx_st& context, void* to, const void* from, std::size_t bytes, bool over_the_bus) {
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
        static_cast<std::uint64_t>(1e9 * static_cast<double>(bytes) / state.bytes_per_second);
    due = context.engine_free_ns + state.latency_ns;
  }
  lock.unlock();
  std::memcpy(to, from, bytes);
  if (const std::uint64_t now = now_ns(); now < due)
    std::this_thread::sleep_for(std::chrono::nanoseconds(due - now));
  lock.lock();
  state.copied_bytes += bytes;
}

void in_flight(Fake& state, std::uintptr_t address, int more) {
  if (Span* span = find(state.allocations, address)) span->in_flight += more;
  if (Span* span = find(state.registrations, address)) span->in_flight += more;
}

// Whether [address, address + bytes) lies in one live allocation of the context's device.
bool on_device(Fake& state, Address address, std::size_t bytes, const CUctx_st& context) {
  const Span* span = find(state.allocations, address);
  return span != nullptr && address + bytes <= span->end && span->ordinal == context.ordinal;
}

Result enqueue_copy(Fake& state, Lock& lock, const char* name, std::uintptr_t to, std::uintptr_t from,
                    std::size_t bytes, Stream handle, bool to_device, bool from_device) {
  const auto stream = alive(state, handle, name);
  if (!stream) return kInvalidHandle;
  CUctx_st* context = stream->context;
  if (to_device && !on_device(state, to, bytes, *context)) {
    state.violations.push_back(std::string(name) + " to memory that is not this device's");
    return kInvalidValue;
  }
  if (from_device && !on_device(state, from, bytes, *context)) {
    state.violations.push_back(std::string(name) + " from memory that is not this device's");
    return kInvalidValue;
  }
  const bool bus = to_device != from_device;
  const std::uintptr_t host = to_device ? from : to;
  if (bus) {
    Span* first = find(state.registrations, host);
    Span* last = find(state.registrations, host + bytes - 1);
    if (first != last) {
      state.violations.push_back(std::string(name) + " across the border of a registration");
      return kInvalidValue;
    }
    if (first == nullptr) {
      // Pageable memory: staged by the driver, done when the call returns.
      if (to_device) ++state.pageable_copies;
      state.changed.wait(lock, [&] { return stream->work.empty() && !stream->busy; });
      if (context->sticky == kSuccess) {
        move(lock, *context, reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, true);
      }
      return context->sticky;
    }
  }
  in_flight(state, to, 1);
  in_flight(state, from, 1);
  push(state, *stream, [=](Lock& held) {
    move(held, *context, reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes, bus);
    in_flight(fake(), to, -1);
    in_flight(fake(), from, -1);
  });
  return kSuccess;
}

}  // namespace

Fake& fake() {
  static Fake* const state = [] {  // never freed: workers may outlive main
    auto* made = new Fake;
    if (const char* text = std::getenv("FAKE_CUDA")) configure(*made, text);
    return made;
  }();
  return *state;
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

#define API extern "C" __attribute__((visibility("default"))) Result

API cuInit(unsigned) {
  Fake& state = fake();
  const Lock lock(state.mutex);
  if (state.initialised_by != 0 && state.initialised_by != getpid()) return kNotInitialized;
  if (const Result entered = enter(state, "cuInit", false, false); entered != kSuccess) return entered;
  state.initialised_by = getpid();
  while (static_cast<int>(state.contexts.size()) < state.devices) {
    state.contexts.push_back(new CUctx_st);
    state.contexts.back()->ordinal = static_cast<int>(state.contexts.size()) - 1;
  }
  return kSuccess;
}

API cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion", false);
  *version = 13000;
  return kSuccess;
}

API cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {
      {kSuccess, "CUDA_SUCCESS"},
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kNotReady, "CUDA_ERROR_NOT_READY"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {kUnknown, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kInvalidValue : kSuccess;
}

API cuGetErrorString(Result, const char** text) {
  *text = "as the fake driver was told";
  return kSuccess;
}

API cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount", false);
  *count = state.devices;
  return kSuccess;
}

API cuDeviceGet(DeviceHandle* device, int ordinal) {
  ENTER("cuDeviceGet", false);
  if (ordinal < 0 || ordinal >= state.devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

API cuDeviceGetName(char* name, int length, DeviceHandle) {
  ENTER("cuDeviceGetName", false);
  std::snprintf(name, static_cast<std::size_t>(length), "fake GPU");
  return kSuccess;
}

API cuDeviceGetPCIBusId(char* id, int length, DeviceHandle device) {
  ENTER("cuDeviceGetPCIBusId", false);
  std::snprintf(id, static_cast<std::size_t>(length), "fade:%02x:00.0", device);
  return kSuccess;
}

API cuDeviceTotalMem_v2(std::size_t* bytes, DeviceHandle) {
  ENTER("cuDeviceTotalMem_v2", false);
  *bytes = std::size_t{8} << 30;
  return kSuccess;
}

API cuDevicePrimaryCtxRetain(Context* context, DeviceHandle device) {
  ENTER("cuDevicePrimaryCtxRetain", false);
  CUctx_st* found = state.contexts.at(static_cast<std::size_t>(device));
  if (found->sticky != kSuccess) return found->sticky;
  ++found->retained;
  *context = found;
  return kSuccess;
}

API cuDevicePrimaryCtxRelease_v2(DeviceHandle device) {
  ENTER("cuDevicePrimaryCtxRelease_v2", false);
  if (--state.contexts.at(static_cast<std::size_t>(device))->retained < 0) {
    state.violations.emplace_back("a primary context released more often than retained");
  }
  return kSuccess;
}

API cuCtxPushCurrent_v2(Context context) {
  ENTER("cuCtxPushCurrent_v2", false);
  if (context == nullptr || context->retained == 0) {
    state.violations.emplace_back("a context made current that nobody retains");
    return kInvalidContext;
  }
  current_contexts.push_back(context);
  return kSuccess;
}

API cuCtxPopCurrent_v2(Context* context) {
  ENTER("cuCtxPopCurrent_v2", false);
  if (current_contexts.empty()) return kInvalidContext;
  *context = current_contexts.back();
  current_contexts.pop_back();
  return kSuccess;
}

API cuStreamCreate(Stream* stream, unsigned) {
  ENTER("cuStreamCreate", true);
  const auto made = make_stream(current());
  *stream = made.get();
  state.streams[made.get()] = made;
  return kSuccess;
}

API cuStreamDestroy_v2(Stream stream) {
  ENTER("cuStreamDestroy_v2", true);
  const auto found = alive(state, stream, "cuStreamDestroy");
  if (!found) return kInvalidHandle;
  if (!found->work.empty() || found->busy)
    state.violations.emplace_back("cuStreamDestroy while it is at work");
  found->closing = true;
  state.streams.erase(stream);
  state.changed.notify_all();
  return kSuccess;
}

API cuStreamQuery(Stream stream) {
  ENTER("cuStreamQuery", true);
  const auto found = alive(state, stream, "cuStreamQuery");
  if (!found) return kInvalidHandle;
  return found->work.empty() && !found->busy ? kSuccess : kNotReady;
}

API cuStreamSynchronize(Stream stream) {
  ENTER("cuStreamSynchronize", true);
  const auto found = alive(state, stream, "cuStreamSynchronize");
  if (!found) return kInvalidHandle;
  state.changed.wait(lock, [&] { return (found->work.empty() && !found->busy) || found->context->sticky; });
  return found->context->sticky;
}

API cuStreamGetCtx(Stream stream, Context* context) {
  ENTER("cuStreamGetCtx", true);
  const auto found = alive(state, stream, "cuStreamGetCtx");
  if (!found) return kInvalidHandle;
  *context = found->context;
  return kSuccess;
}

API cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  ENTER("cuStreamWaitEvent", true);
  const auto where = alive(state, stream, "cuStreamWaitEvent");
  const auto what = alive(state, event, "cuStreamWaitEvent");
  if (!where || !what) return kInvalidHandle;
  push(state, *where, [where, what, until = what->recorded](Lock& held) {
    fake().changed.wait(held, [&] { return what->reached >= until || where->context->sticky; });
  });
  return kSuccess;
}

API cuEventCreate(Event* event, unsigned) {
  ENTER("cuEventCreate", true);
  const auto made = std::make_shared<CUevent_st>();
  made->context = current();
  *event = made.get();
  state.events[made.get()] = made;
  return kSuccess;
}

API cuEventDestroy_v2(Event event) {
  ENTER("cuEventDestroy_v2", true);
  if (!alive(state, event, "cuEventDestroy")) return kInvalidHandle;
  state.events.erase(event);
  return kSuccess;
}

API cuEventRecord(Event event, Stream stream) {
  ENTER("cuEventRecord", true);
  const auto what = alive(state, event, "cuEventRecord");
  const auto where = alive(state, stream, "cuEventRecord");
  if (!where || !what) return kInvalidHandle;
  push(state, *where, [what, number = ++what->recorded](Lock&) { what->reached = number; });
  return kSuccess;
}

API cuEventQuery(Event event) {
  ENTER("cuEventQuery", true);
  const auto found = alive(state, event, "cuEventQuery");
  if (!found) return kInvalidHandle;
  return found->reached >= found->recorded ? kSuccess : kNotReady;
}

API cuLaunchHostFunc(Stream stream, HostFunction function, void* user) {
  ENTER("cuLaunchHostFunc", true);
  const auto found = alive(state, stream, "cuLaunchHostFunc");
  if (!found) return kInvalidHandle;
  push(state, *found, [function, user](Lock& held) {
    ++fake().host_functions;
    held.unlock();
    function(user);
    held.lock();
  });
  return kSuccess;
}

API cuStreamWaitValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned) {
  ENTER("cuStreamWaitValue32_v2", true);
  const auto found = alive(state, stream, "cuStreamWaitValue32");
  if (!found) return kInvalidHandle;
  if (find(state.registrations, address) == nullptr) {
    state.violations.emplace_back("cuStreamWaitValue32 on memory that is not registered");
    return kInvalidValue;
  }
  in_flight(state, address, 1);
  push(state, *found, [found, address, value](Lock& held) {
    const std::atomic_ref<std::uint32_t> word(*reinterpret_cast<std::uint32_t*>(address));
    while (static_cast<std::int32_t>(word.load() - value) < 0 && !found->context->sticky) {
      fake().changed.wait_for(held, std::chrono::microseconds(50));
    }
    in_flight(fake(), address, -1);
  });
  return kSuccess;
}

API cuStreamWriteValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned) {
  ENTER("cuStreamWriteValue32_v2", true);
  const auto found = alive(state, stream, "cuStreamWriteValue32");
  if (!found) return kInvalidHandle;
  if (find(state.registrations, address) == nullptr) {
    state.violations.emplace_back("cuStreamWriteValue32 on memory that is not registered");
    return kInvalidValue;
  }
  in_flight(state, address, 1);
  push(state, *found, [address, value](Lock&) {
    std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address)).store(value);
    in_flight(fake(), address, -1);
  });
  return kSuccess;
}

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
  return enqueue_copy(state, lock, "cuMemcpyHtoDAsync", to, reinterpret_cast<std::uintptr_t>(from), bytes,
                      stream, true, false);
}

API cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream stream) {
  ENTER("cuMemcpyDtoHAsync_v2", true);
  return enqueue_copy(state, lock, "cuMemcpyDtoHAsync", reinterpret_cast<std::uintptr_t>(to), from, bytes,
                      stream, false, true);
}

API cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream stream) {
  ENTER("cuMemcpyDtoDAsync_v2", true);
  return enqueue_copy(state, lock, "cuMemcpyDtoDAsync", to, from, bytes, stream, true, true);
}

API cuMemcpyBatchAsync_v2(Address* to, Address* from, std::size_t* bytes, std::size_t count,
                          CUmemcpyAttributes_st*, std::size_t*, std::size_t, Stream stream) {
  ENTER("cuMemcpyBatchAsync_v2", true);
  for (std::size_t i = 0; i < count; ++i) {
    const Result result = enqueue_copy(state, lock, "cuMemcpyBatchAsync", to[i], from[i], bytes[i], stream,
                                       true, find(state.allocations, from[i]) != nullptr);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

// The same signatures as in the table that the library is built from.
#define SAME(name, parameters) static_assert(std::is_same_v<decltype(&name), Result(*) parameters>, #name);
LAYERCAST_CUDA_FUNCTIONS(SAME)
LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(SAME)
