// Addresses as Python has them: numbers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace layercast::bindings {

namespace nb = nanobind;

using Addresses = std::vector<std::uintptr_t>;
using Sizes = std::vector<std::size_t>;

inline std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

inline std::vector<std::byte*> pointers(const Addresses& addresses) {
  std::vector<std::byte*> out;
  for (const std::uintptr_t address : addresses) out.push_back(pointer(address));
  return out;
}

// Devices, and memory as other libraries describe it.
void bind_devices(nb::module_& m);

}  // namespace layercast::bindings
