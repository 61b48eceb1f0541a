// An NVIDIA GPU. Copies go into one stream, in order; an event behind each batch says when it has finished.
// Bells hang on a second stream that waits for such an event, so that a bell (a function call on a thread of
// the driver) never delays the copies behind it.
#include <unistd.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "device.h"
#include "devices/cuda_context.h"
#include "devices/cuda_layers.h"
#include "devices/cuda_pins.h"

namespace layercast {

namespace {

using namespace cuda;

// A device that has fallen off rings no more: whoever sleeps looks this often all the same.
constexpr std::uint64_t kLookNs = 50 * kMillisecond;
// Destinations are read by kernels in vectors of this many bytes.
constexpr std::uintptr_t kAlignment = 16;

Address address_of(const std::byte* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
std::string hex(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", address);
  return text;
}

// What a thread of the driver calls.
struct Bell {
  std::mutex mutex;
  std::function<void()> call;
  static void ring(void* user) {
    auto* bell = static_cast<Bell*>(user);
    const std::lock_guard lock(bell->mutex);
    if (bell->call) bell->call();
  }
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const CudaOptions& options)
      : options_(options),
        owner_(getpid()),
        primary_(load_driver(options.library), options.ordinal),
        driver_(primary_.driver()),
        pins_(primary_, options.strict),
        layers_(primary_) {
    if (options.batch && driver_.cuMemcpyBatchAsync_v2 == nullptr) {
      refuse(Code::kArgument, describe() +
                                  ": batch=yes needs cuMemcpyBatchAsync, which drivers have from CUDA 13.0 "
                                  "on and this one has not; leave batch=yes out");
    }
    try {
      const Current current(primary_, Code::kDeviceInit);
      for (Stream* stream : {&copies_, &bells_, &reads_}) {
        primary_.check(driver_.cuStreamCreate(stream, kStreamNonBlocking), "cuStreamCreate",
                       Code::kDeviceInit);
      }
      layers_.open();
    } catch (...) {
      release();
      throw;
    }
  }

  ~CudaDevice() override { close(); }

  void close() noexcept override {
    if (getpid() != owner_ || closed_.exchange(true)) return;
    drain();
    if (hung_) {
      // Copies may still be under way: their memory stays registered, and the kernel lets go with the
      // process.
      static_cast<void>(bell_.release());
      primary_.abandon();
      return;
    }
    release();
  }

  std::string describe() const override {
    return "cuda:" + std::to_string(primary_.ordinal()) + " (" + primary_.name() + ", driver " +
           driver_.version_text() + ")";
  }
  bool readable() const override { return false; }
  int cuda_ordinal() const override { return primary_.ordinal(); }
  std::string bus_id() const override { return primary_.pci_bus_id(); }

  std::byte* allocate(std::size_t bytes) override {
    check_owner();
    const Current current(primary_);
    Address address = 0;
    if (const Result result = driver_.cuMemAlloc_v2(&address, bytes); result != kSuccess) {
      std::size_t free = 0, total = 0;
      const bool known = driver_.cuMemGetInfo_v2(&free, &total) == kSuccess;
      primary_.fail(result, "cuMemAlloc", Code::kResource,
                    std::to_string(bytes) + " bytes" +
                        (known ? " (" + std::to_string(free) + " of " + std::to_string(total) + " are free)"
                               : std::string()));
    }
    const std::lock_guard lock(mutex_);
    allocated_.push_back(address);
    return reinterpret_cast<std::byte*>(address);
  }

  void adopt(std::byte* pointer, std::size_t bytes) override {
    check_owner();
    const Address address = address_of(pointer);
    unsigned type = 0;
    int ordinal = -1;
    Address start = 0;
    std::size_t size = 0;
    int attributes[] = {kPointerMemoryType, kPointerDeviceOrdinal, kPointerRangeStart, kPointerRangeSize};
    void* data[] = {&type, &ordinal, &start, &size};
    const Current current(primary_);
    const Result asked = driver_.cuPointerGetAttributes(4, attributes, data, address);
    // Whatever else it says is about the device, not about the address.
    primary_.check(asked, "cuPointerGetAttributes",
                   asked == kInvalidValue ? Code::kArgument : Code::kDeviceInit,
                   "destination " + hex(address));
    const std::string who = "destination " + hex(address) + ": ";
    if (type != kMemoryTypeDevice) {
      refuse(Code::kArgument, who + "expected memory of device " + std::to_string(primary_.ordinal()) +
                                  ", this is not device memory");
    }
    if (ordinal != primary_.ordinal()) {
      refuse(Code::kArgument, who + "expected memory of device " + std::to_string(primary_.ordinal()) +
                                  ", this is device " + std::to_string(ordinal) + "'s");
    }
    if (address % kAlignment != 0) {
      refuse(Code::kArgument, who + "expected a multiple of " + std::to_string(kAlignment));
    }
    if (address - start > size || bytes > size - (address - start)) {
      refuse(Code::kArgument, who + "expected room for " + std::to_string(bytes) +
                                  " bytes, its allocation (" + std::to_string(size) + " bytes from " +
                                  hex(start) + " on) ends after " + std::to_string(start + size - address));
    }
  }

  void pin(std::byte* address, std::size_t bytes) override {
    check_owner();
    pins_.add(address, bytes);
  }
  void unpin(std::byte* address) noexcept override {
    if (getpid() == owner_ && !hung_ && !closed_) pins_.remove(address);
  }
  Pinned pinned() const override { return pins_.count(); }

  Ticket enqueue(std::span<const Copy> copies) override {
    check_owner();
    const std::lock_guard lock(mutex_);
    pins_.split(copies, parts_);
    const Current current(primary_);
    loose_ = true;  // until an event stands behind them
    layers_.wait_for_consumed(copies_);
    if (!options_.batch || !copy_batch(driver_, parts_, copies_, primary_)) {
      for (const Copy& part : parts_) {
        primary_.check(driver_.cuMemcpyHtoDAsync_v2(address_of(part.to), part.from, part.bytes, copies_),
                       "cuMemcpyHtoDAsync", Code::kDeviceCopy, std::to_string(part.bytes) + " bytes");
      }
    }
    return record();
  }

  Ticket enqueue_local(std::span<const Copy> copies) override {
    check_owner();
    const std::lock_guard lock(mutex_);
    const Current current(primary_);
    loose_ = true;
    layers_.wait_for_consumed(copies_);
    for (const Copy& copy : copies) {
      primary_.check(
          driver_.cuMemcpyDtoDAsync_v2(address_of(copy.to), address_of(copy.from), copy.bytes, copies_),
          "cuMemcpyDtoDAsync", Code::kDeviceCopy, std::to_string(copy.bytes) + " bytes");
    }
    return record();
  }

  const std::byte* read(const std::byte* at, std::size_t bytes, std::vector<std::byte>& scratch) override {
    check_owner();
    scratch.resize(bytes);
    const Current current(primary_);
    primary_.check(driver_.cuMemcpyDtoHAsync_v2(scratch.data(), address_of(at), bytes, reads_),
                   "cuMemcpyDtoHAsync", Code::kDeviceCopy, std::to_string(bytes) + " bytes");
    primary_.check(driver_.cuStreamSynchronize(reads_), "cuStreamSynchronize", Code::kDeviceCopy);
    return scratch.data();
  }

  bool done(Ticket ticket) override {
    check_owner();
    const std::lock_guard lock(mutex_);
    const InFlight* found = nullptr;
    for (const InFlight& one : queue_) {
      if (one.ticket > ticket) break;
      found = &one;
    }
    if (found == nullptr) return true;
    const Current current(primary_);
    const Result result = driver_.cuEventQuery(found->event);
    if (result == kNotReady) return false;
    primary_.check(result, "cuEventQuery", Code::kDeviceCopy,
                   "a copy, or what came before it on this device,");
    while (!queue_.empty() && queue_.front().ticket <= ticket) {
      spare_.push_back(queue_.front().event);
      queue_.pop_front();
    }
    return true;
  }

  std::uint64_t due_ns(Ticket) const override { return (now_ns() / kLookNs + 1) * kLookNs; }

  void ring_when_done(Ticket ticket) override {
    check_owner();
    const std::lock_guard lock(mutex_);
    if (ticket <= armed_) return;
    for (const InFlight& one : queue_) {
      if (one.ticket != ticket) continue;
      const Current current(primary_);
      primary_.check(driver_.cuStreamWaitEvent(bells_, one.event, 0), "cuStreamWaitEvent", Code::kDeviceCopy);
      primary_.check(driver_.cuLaunchHostFunc(bells_, &Bell::ring, bell_.get()), "cuLaunchHostFunc",
                     Code::kDeviceCopy);
      armed_ = ticket;
      return;
    }
  }

  void on_finished(std::function<void()> call) override {
    if (!bell_) return;  // left to a driver that may still ring it
    const std::lock_guard lock(bell_->mutex);
    bell_->call = std::move(call);
  }

  // What is in flight cannot be taken back: it is waited for. Where that does not end, nothing that it may
  // touch is given back.
  void drain() noexcept override {
    if (getpid() != owner_) return;
    const std::lock_guard lock(mutex_);
    if ((queue_.empty() && !loose_) || hung_) return;
    Context popped = nullptr;
    if (driver_.cuCtxPushCurrent_v2(primary_.context()) != kSuccess) return;
    const std::uint64_t until = add_saturated(now_ns(), options_.patience_ns);
    auto pause = std::chrono::microseconds(20);
    // Any other answer is a device that has failed: it moves no bytes any more.
    while (driver_.cuStreamQuery(copies_) == kNotReady) {
      if (now_ns() > until) {
        hung_ = true;
        break;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::microseconds(2000));
    }
    static_cast<void>(driver_.cuCtxPopCurrent_v2(&popped));
    if (hung_) return;
    for (const InFlight& one : queue_) spare_.push_back(one.event);
    queue_.clear();
    loose_ = false;
  }

  std::uint32_t begin_layer() override { return layers_.begin(); }
  void mark_layer(std::uint32_t layer) override {
    check_owner();
    const std::lock_guard lock(mutex_);
    const Current current(primary_);
    loose_ = true;
    layers_.mark(layer, copies_);
  }
  void end_layer(std::uint32_t layer) noexcept override { layers_.end(layer); }
  void stream_wait(std::uintptr_t stream) override {
    check_owner();
    layers_.make_wait(reinterpret_cast<Stream>(stream));
  }
  void wait_for_stream(std::uintptr_t stream) override {
    check_owner();
    layers_.consumed(reinterpret_cast<Stream>(stream));
  }

 private:
  struct InFlight {
    Ticket ticket;
    Event event;
  };

  void check_owner() const {
    if (closed_) refuse(Code::kState, "cuda device " + std::to_string(primary_.ordinal()) + " is closed");
    if (getpid() == owner_) return;
    refuse(Code::kForked, "cuda device " + std::to_string(primary_.ordinal()) + " belongs to pid " +
                              std::to_string(owner_) + ", which forked; open it after fork");
  }

  Ticket record() {
    if (spare_.empty()) {
      Event event = nullptr;
      primary_.check(driver_.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate", Code::kDeviceCopy);
      spare_.push_back(event);
    }
    primary_.check(driver_.cuEventRecord(spare_.back(), copies_), "cuEventRecord", Code::kDeviceCopy);
    queue_.push_back({++last_, spare_.back()});
    spare_.pop_back();
    loose_ = false;
    return last_;
  }

  // In reverse order of acquisition. On a device that has failed the calls fail too, and there is no more to
  // say.
  void release() noexcept {
    Context popped = nullptr;
    if (driver_.cuCtxPushCurrent_v2(primary_.context()) != kSuccess) return;
    // The last bell has rung, or never will.
    if (bells_ != nullptr) static_cast<void>(driver_.cuStreamSynchronize(bells_));
    for (const InFlight& one : queue_) spare_.push_back(one.event);
    const bool unused = layers_.close(options_.patience_ns);
    for (const Event event : spare_) static_cast<void>(driver_.cuEventDestroy_v2(event));
    for (const Stream stream : {reads_, bells_, copies_}) {
      if (stream != nullptr) static_cast<void>(driver_.cuStreamDestroy_v2(stream));
    }
    if (unused) {
      for (const Address address : allocated_) static_cast<void>(driver_.cuMemFree_v2(address));
    }
    pins_.remove_all();
    static_cast<void>(driver_.cuCtxPopCurrent_v2(&popped));
    primary_.release();
  }

  const CudaOptions options_;
  const pid_t owner_;
  Primary primary_;
  const Driver& driver_;
  Pins pins_;
  Layers layers_;
  Stream copies_ = nullptr, bells_ = nullptr, reads_ = nullptr;
  std::unique_ptr<Bell> bell_ = std::make_unique<Bell>();

  mutable std::mutex mutex_;  // of what follows
  std::deque<InFlight> queue_;
  std::vector<Event> spare_;
  std::vector<Address> allocated_;
  std::vector<Copy> parts_;
  Ticket last_ = 0, armed_ = 0;
  bool loose_ = false;  // the stream may be at work although the queue is empty
  std::atomic<bool> hung_{false}, closed_{false};
};

}  // namespace

std::shared_ptr<Device> make_cuda_device(const CudaOptions& options) {
  // T25: after a fork the driver is unusable in the child; its copy of the object touches nothing.
  return {new CudaDevice(options), [owner = getpid()](const CudaDevice* device) {
            if (getpid() == owner) delete device;
          }};
}

}  // namespace layercast
