// The CUDA driver, found at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "devices/cuda_functions.h"
#include "error.h"

namespace layercast::cuda {

struct Driver {
#define LAYERCAST_DECLARE(name, parameters) Result(*name) parameters = nullptr;
  LAYERCAST_CUDA_FUNCTIONS(LAYERCAST_DECLARE)
  LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(LAYERCAST_DECLARE)
#undef LAYERCAST_DECLARE

  std::string library;
  int version = 0;  // 1000 x major + 10 x minor

  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
  std::string words(Result result) const;
  std::string version_text() const;
};

// Loads `library` (empty: libcuda.so.1), looks every function up and initialises it. Throws Error(kResource)
// where there is no driver or no working one, Error(kForked) in a child of a process that had initialised it.
std::shared_ptr<const Driver> load_driver(const std::string& library);

struct DeviceFacts {
  int ordinal = 0;
  std::string name, pci_bus_id;
  std::size_t bytes = 0;
};
std::vector<DeviceFacts> list_devices(const Driver& driver);

}  // namespace layercast::cuda
