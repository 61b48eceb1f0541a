// A CUDA driver without a GPU: host memory as device memory, a worker thread per stream, copies that happen
// later. It holds the caller to the rules that the real one may or may not notice. See state.h; tests steer
// it through the fake_cuda_* functions or $FAKE_CUDA.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

using namespace layercast::cuda;

namespace {

// Plain, and in the part of a thread's storage that comes with its stack: what the loader allocates for a
// thread's variables is freed later by whichever thread clears the cache of stacks, which TSan cannot order.
struct ContextStack {
  std::array<CUctx_st*, 64> contexts;
  std::size_t depth;
};
__attribute__((tls_model("initial-exec"))) thread_local ContextStack current_contexts;

}  // namespace

CUctx_st* current() {
  return current_contexts.depth == 0 ? nullptr : current_contexts.contexts[current_contexts.depth - 1];
}

// Every function begins here: counted, logged, injected errors, the process and the device's own state.
Result enter(Fake& state, const char* name, bool needs_context, bool needs_init) {
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

void in_flight(Fake& state, std::uintptr_t address, int more) {
  if (Span* span = find(state.allocations, address)) span->in_flight += more;
  if (Span* span = find(state.registrations, address)) span->in_flight += more;
}

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
      {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
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
  if (current_contexts.depth == current_contexts.contexts.size()) return kInvalidContext;
  current_contexts.contexts[current_contexts.depth++] = context;
  return kSuccess;
}

API cuCtxPopCurrent_v2(Context* context) {
  ENTER("cuCtxPopCurrent_v2", false);
  if (current_contexts.depth == 0) return kInvalidContext;
  *context = current_contexts.contexts[--current_contexts.depth];
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

// A stream memory operation on a word of registered host memory, which must stay until it is over.
static Result push_word(Fake& state, const char* name, Stream stream, Address address,
                        std::function<void(Lock&, CUctx_st&, std::atomic_ref<std::uint32_t>)> item) {
  const auto found = alive(state, stream, name);
  if (!found) return kInvalidHandle;
  if (find(state.registrations, address) == nullptr) {
    state.violations.push_back(std::string(name) + " on memory that is not registered");
    return kInvalidValue;
  }
  in_flight(state, address, 1);
  push(state, *found, [found, address, item = std::move(item)](Lock& held) {
    item(held, *found->context, std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(address)));
    in_flight(fake(), address, -1);
  });
  return kSuccess;
}

API cuStreamWaitValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned) {
  ENTER("cuStreamWaitValue32_v2", true);
  return push_word(state, "cuStreamWaitValue32", stream, address,
                   [value](Lock& held, CUctx_st& context, std::atomic_ref<std::uint32_t> word) {
                     while (static_cast<std::int32_t>(word.load() - value) < 0 && !context.sticky) {
                       fake().changed.wait_for(held, std::chrono::microseconds(50));
                     }
                   });
}

API cuStreamWriteValue32_v2(Stream stream, Address address, std::uint32_t value, unsigned) {
  ENTER("cuStreamWriteValue32_v2", true);
  return push_word(state, "cuStreamWriteValue32", stream, address,
                   [value](Lock&, CUctx_st&, std::atomic_ref<std::uint32_t> word) { word.store(value); });
}
