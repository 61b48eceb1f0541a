// Devices, and memory as other libraries describe it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "convert.h"
#include "device.h"
#include "devices/cuda_driver.h"
#include "measure.h"

namespace layercast::bindings {

namespace {

using namespace nb::literals;

// Memory as others know it, by DLPack (https://dmlc.github.io/dlpack): `code` and `bits` say what an element
// is.
nb::object dlpack_view(std::uintptr_t address, const Sizes& shape, std::uint8_t code, std::uint8_t bits,
                       int device_type, int device_id, nb::object owner) {
  const nb::dlpack::dtype type{code, bits, 1};
  return nb::cast(nb::ndarray<>(pointer(address), shape.size(), shape.data(), std::move(owner), nullptr, type,
                                device_type, device_id));
}

void write(Device& device, std::uintptr_t address, const nb::bytes& data) {
  const auto* from = static_cast<const std::byte*>(data.data());
  const std::size_t bytes = data.size();
  const nb::gil_scoped_release released;
  measure_copies(device, from, pointer(address), bytes, bytes, 1);
}

void bind_cuda(nb::module_& m) {
  m.def(
      "describe_array",
      [](const nb::ndarray<nb::ro>& array) {
        bool contiguous = true;
        std::int64_t expected = 1;
        for (std::size_t i = array.ndim(); i-- > 0;) {
          contiguous = contiguous && (array.shape(i) == 1 || array.stride(i) == expected);
          expected *= static_cast<std::int64_t>(array.shape(i));
        }
        return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), array.nbytes(), contiguous,
                              array.device_type() == nb::device::cuda::value, array.device_id());
      },
      "array"_a, "DLPack: address, bytes, whether rows lie one behind the other, on a CUDA device, which.");
  m.def(
      "measure_copies",
      [](Device& device, std::uintptr_t from, std::uintptr_t to, std::size_t bytes, std::size_t piece_bytes,
         std::size_t rounds) {
        return measure_copies(device, pointer(from), pointer(to), bytes, piece_bytes, rounds);
      },
      "device"_a, "from_"_a, "to"_a, "bytes"_a, "piece_bytes"_a, "rounds"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Nanoseconds that copies from pinned memory take, nothing else being in the way.");
  m.def(
      "cuda_device",
      [](const std::string& library, int ordinal, bool strict, bool batch, std::uint64_t patience_ms) {
        return make_cuda_device({library, ordinal, strict, batch, milliseconds(patience_ms)});
      },
      "library"_a, "ordinal"_a, "strict"_a = true, "batch"_a = false, "patience_ms"_a = 10'000,
      nb::call_guard<nb::gil_scoped_release>(), "A GPU; an empty library is the usual one.");
  m.def(
      "cuda_driver",
      [](const std::string& library) {
        const auto driver = cuda::load_driver(library);
        nb::list devices;
        for (const cuda::DeviceFacts& facts : cuda::list_devices(*driver)) {
          devices.append(nb::make_tuple(facts.ordinal, facts.name, facts.pci_bus_id, facts.bytes));
        }
        return nb::make_tuple(driver->version, devices);
      },
      "library"_a, "The driver's version, and (ordinal, name, PCI bus id, bytes of memory) of every device.");
}

}  // namespace

void bind_devices(nb::module_& m) {
  bind_cuda(m);
  nb::class_<Device>(m, "Device", "Where a rank's experts go: destination memory and copies to it.")
      .def("describe", &Device::describe)
      .def_prop_ro("moves", &Device::moves)
      .def_prop_ro("prompt", &Device::prompt)
      .def("close", &Device::close, nb::call_guard<nb::gil_scoped_release>(),
           "Gives back what it holds, destination memory too. Idempotent.")
      .def_prop_ro("readable", &Device::readable)
      .def_prop_ro("bus_id", &Device::bus_id)
      .def_prop_ro(
          "dlpack_device",
          [](const Device& device) {
            const int ordinal = device.cuda_ordinal();
            return ordinal < 0 ? nb::make_tuple(nb::device::cpu::value, 0)
                               : nb::make_tuple(nb::device::cuda::value, ordinal);
          },
          nb::sig("def dlpack_device(self) -> tuple[int, int]"), "DLPack's type and number of the device.")
      .def_prop_ro(
          "pinned",
          [](const Device& device) {
            const Device::Pinned p = device.pinned();
            return nb::make_tuple(p.pinned, p.unpinned, p.failure);
          },
          "Bytes that are pinned, bytes that could not be, and why.")
      .def(
          "allocate",
          [](Device& device, std::size_t bytes) {
            return reinterpret_cast<std::uintptr_t>(device.allocate(bytes));
          },
          "bytes"_a, nb::call_guard<nb::gil_scoped_release>(), "Memory that lives as long as the device.")
      .def(
          "adopt",
          [](Device& device, std::uintptr_t address, std::size_t bytes) {
            device.adopt(pointer(address), bytes);
          },
          "address"_a, "bytes"_a)
      .def(
          "read",
          [](Device& device, std::uintptr_t address, std::size_t bytes) {
            std::vector<std::byte> scratch;
            const std::byte* found = nullptr;
            {
              const nb::gil_scoped_release released;
              found = device.read(pointer(address), bytes, scratch);
            }
            return nb::bytes(reinterpret_cast<const char*>(found), bytes);
          },
          "address"_a, "bytes"_a, "A copy of what lies there.")
      .def("write", &write, "address"_a, "data"_a,
           "Puts bytes there and waits for them; while no transport uses the device.")
      .def(
          "pin",
          [](Device& device, std::uintptr_t address, std::size_t bytes) {
            device.pin(pointer(address), bytes);
          },
          "address"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "unpin", [](Device& device, std::uintptr_t address) { device.unpin(pointer(address)); },
          "address"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("dlpack_view", &dlpack_view, "address"_a, "shape"_a, "code"_a, "bits"_a, "device_type"_a,
        "device_id"_a, "owner"_a, "A DLPack capsule over this memory, which keeps `owner` alive.");
  m.def("host_device", &make_host_device, "Destination in memory of the rank's own.");
  m.def(
      "link_device",
      [](double bytes_per_second, std::uint64_t latency_ns, bool move, std::uint64_t slow_ns,
         std::uint64_t fail_at, std::uint64_t hang_at) {
        return make_link_device({bytes_per_second, latency_ns, move, slow_ns, fail_at, hang_at});
      },
      "bytes_per_second"_a, "latency_ns"_a = 0, "move"_a = true, "slow_ns"_a = 0, "fail_at"_a = 0,
      "hang_at"_a = 0,
      "A simulated bus. 0 bytes per second: as fast as memory; n-th copies to fail or hang count from 1.");
}

}  // namespace layercast::bindings
