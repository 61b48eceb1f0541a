// One device's primary context, shared with whatever else of this process uses the device, and calls into it.
#pragma once

#include <memory>
#include <string>

#include "devices/cuda_driver.h"

namespace layercast::cuda {

class Primary {
 public:
  // Throws Error(kResource) where the machine has no such device, Error(kDeviceInit) where the driver fails.
  Primary(std::shared_ptr<const Driver> driver, int ordinal);
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  ~Primary() { release(); }
  void release() noexcept;
  // Leaves the context to the process: something of it may still be at work.
  void abandon() { context_ = nullptr; }

  const Driver& driver() const { return *driver_; }
  Context context() const { return context_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  const std::string& pci_bus_id() const { return pci_bus_id_; }

  // Throws Error(code): function, code name, text, device.
  void check(Result result, const char* function, Code code, const std::string& about = "") const {
    if (result != kSuccess) fail(result, function, code, about);
  }
  [[noreturn]] void fail(Result result, const char* function, Code code, const std::string& about) const;

 private:
  std::shared_ptr<const Driver> driver_;
  const int ordinal_;
  DeviceHandle handle_ = 0;
  Context context_ = nullptr;
  std::string name_, pci_bus_id_;
};

// The context is current in this thread while it lives; what was current before is so again afterwards.
class Current {
 public:
  explicit Current(const Primary& primary, Code code = Code::kDeviceCopy) : primary_(primary) {
    primary.check(primary.driver().cuCtxPushCurrent_v2(primary.context()), "cuCtxPushCurrent", code);
  }
  ~Current() {
    Context popped = nullptr;
    // Nothing can be done about a failure here, and the calls in between have said what there is to say.
    static_cast<void>(primary_.driver().cuCtxPopCurrent_v2(&popped));
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Primary& primary_;
};

}  // namespace layercast::cuda
