// Destination in the rank's own memory: the consumer's thread copies, so a copy has finished when enqueue
// returns.
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "device.h"
#include "devices/host_memory.h"
#include "error.h"

namespace layercast {

namespace {

class HostDevice final : public Device {
 public:
  std::string describe() const override { return "host"; }
  std::byte* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void adopt(std::byte* address, std::size_t bytes) override { HostMemory::check(address, bytes); }
  void pin(std::byte*, std::size_t) override {}
  void unpin(std::byte*) noexcept override {}

  Ticket enqueue(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
    return ++last_;
  }
  bool done(Ticket) override { return true; }
  void drain() noexcept override {}
  void on_finished(std::function<void()>) override {}

 private:
  HostMemory memory_;
  Ticket last_ = 0;
};

}  // namespace

std::shared_ptr<Device> make_host_device() { return std::make_shared<HostDevice>(); }

}  // namespace layercast
