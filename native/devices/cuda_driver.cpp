#include "devices/cuda_driver.h"

#include <dlfcn.h>

namespace layercast::cuda {

namespace {

constexpr const char* kUsualLibrary = "libcuda.so.1";

void check(const Driver& driver, Result result, const char* function) {
  if (result == kSuccess) return;
  refuse(Code::kResource,
         "cuda: " + std::string(function) + " of " + driver.library + " failed: " + driver.words(result));
}

}  // namespace

std::string Driver::words(Result result) const {
  const char *name = nullptr, *text = nullptr;
  if (cuGetErrorName == nullptr || cuGetErrorName(result, &name) != kSuccess || name == nullptr) {
    name = "unknown error";
  }
  if (cuGetErrorString == nullptr || cuGetErrorString(result, &text) != kSuccess || text == nullptr)
    text = "";
  return std::string(name) + " (" + std::to_string(result) + "): " + text;
}

std::string Driver::version_text() const {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::shared_ptr<const Driver> load_driver(const std::string& library) {
  const std::string name = library.empty() ? kUsualLibrary : library;
  // Never closed: the driver has threads and exit handlers of its own, and torch may have loaded it as well.
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    refuse(Code::kResource, "cuda: there is no CUDA driver: " + std::string(dlerror()));
  }
  auto driver = std::make_shared<Driver>();
  driver->library = name;
#define LAYERCAST_FIND(symbol, parameters) \
  driver->symbol = reinterpret_cast<Result(*) parameters>(dlsym(handle, #symbol));
  LAYERCAST_CUDA_FUNCTIONS(LAYERCAST_FIND)
  LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(LAYERCAST_FIND)
#undef LAYERCAST_FIND
  std::string missing;
#define LAYERCAST_MISSES(symbol, parameters) \
  if (driver->symbol == nullptr) missing += " " #symbol;
  LAYERCAST_CUDA_FUNCTIONS(LAYERCAST_MISSES)
#undef LAYERCAST_MISSES
  if (!missing.empty()) refuse(Code::kResource, "cuda: " + name + " lacks" + missing);
  const Result initialised = driver->cuInit(0);
  if (initialised == kNotInitialized) {
    refuse(Code::kForked,
           "cuda: cuInit of " + name + " failed: " + driver->words(initialised) +
               "; this process was forked from one that had initialised CUDA: start ranks with "
               "spawn, or open the device after fork only");
  }
  check(*driver, initialised, "cuInit");
  check(*driver, driver->cuDriverGetVersion(&driver->version), "cuDriverGetVersion");
  return driver;
}

std::vector<DeviceFacts> list_devices(const Driver& driver) {
  int count = 0;
  check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount");
  std::vector<DeviceFacts> out;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    DeviceHandle handle = 0;
    char name[128] = "", pci[32] = "";
    DeviceFacts facts;
    facts.ordinal = ordinal;
    check(driver, driver.cuDeviceGet(&handle, ordinal), "cuDeviceGet");
    check(driver, driver.cuDeviceGetName(name, sizeof name, handle), "cuDeviceGetName");
    check(driver, driver.cuDeviceGetPCIBusId(pci, sizeof pci, handle), "cuDeviceGetPCIBusId");
    check(driver, driver.cuDeviceTotalMem_v2(&facts.bytes, handle), "cuDeviceTotalMem");
    facts.name = name;
    facts.pci_bus_id = pci;
    out.push_back(std::move(facts));
  }
  return out;
}

}  // namespace layercast::cuda
