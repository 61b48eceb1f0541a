#include "devices/cuda_context.h"

namespace layercast::cuda {

Primary::Primary(std::shared_ptr<const Driver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal) {
  int count = 0;
  check(driver_->cuDeviceGetCount(&count), "cuDeviceGetCount", Code::kDeviceInit);
  if (ordinal < 0 || ordinal >= count) {
    refuse(Code::kResource, "cuda: device " + std::to_string(ordinal) + " was asked for, this process sees " +
                                std::to_string(count) + (count == 1 ? " device" : " devices"));
  }
  check(driver_->cuDeviceGet(&handle_, ordinal), "cuDeviceGet", Code::kDeviceInit);
  char name[128] = "", pci[32] = "";
  check(driver_->cuDeviceGetName(name, sizeof name, handle_), "cuDeviceGetName", Code::kDeviceInit);
  check(driver_->cuDeviceGetPCIBusId(pci, sizeof pci, handle_), "cuDeviceGetPCIBusId", Code::kDeviceInit);
  name_ = name;
  pci_bus_id_ = pci;
  check(driver_->cuDevicePrimaryCtxRetain(&context_, handle_), "cuDevicePrimaryCtxRetain", Code::kDeviceInit);
}

void Primary::release() noexcept {
  if (context_ != nullptr) static_cast<void>(driver_->cuDevicePrimaryCtxRelease_v2(handle_));
  context_ = nullptr;
}

void Primary::fail(Result result, const char* function, Code code, const std::string& about) const {
  refuse(code, "cuda device " + std::to_string(ordinal_) + (name_.empty() ? "" : " (" + name_ + ")") + ": " +
                   function + (about.empty() ? "" : " of " + about) + " failed: " + driver_->words(result));
}

}  // namespace layercast::cuda
