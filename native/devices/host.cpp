// Destination in the rank's own memory: the consumer's thread copies, so a copy has finished when enqueue
// returns.
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "copy.h"
#include "device.h"
#include "devices/host_memory.h"
#include "error.h"

namespace layercast {

namespace {

class HostDevice final : public Device {
 public:
  std::string describe() const override { return "host"; }
  bool prompt() const override { return true; }
  std::byte* allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void adopt(std::byte* address, std::size_t bytes) override { HostMemory::check(address, bytes); }
  void pin(std::byte*, std::size_t) override {}
  void unpin(std::byte*) noexcept override {}

  Ticket enqueue(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) copy_out(copy.to, copy.from, copy.bytes);
    return ++last_;
  }
  Ticket enqueue_local(std::span<const Copy> copies) override { return enqueue(copies); }
  const std::byte* read(const std::byte* at, std::size_t, std::vector<std::byte>&) override { return at; }
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
