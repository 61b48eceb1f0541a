// What a rank's destination must be able to do. One object per rank; enqueue, done and due are the consumer's
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clock.h"
#include "error.h"

namespace layercast {

struct Copy {
  const std::byte* from;
  std::byte* to;
  std::size_t bytes;
};

using Ticket = std::uint64_t;

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string describe() const = 0;

  // Destination memory of the device's own, freed with it.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Destination memory of somebody else's: checked, never freed.
  virtual void adopt(std::byte* address, std::size_t bytes) = 0;

  virtual void pin(std::byte* address, std::size_t bytes) = 0;
  virtual void unpin(std::byte* address) noexcept = 0;

  // Starts the copies, in order, behind all earlier ones. Throws Error(kDeviceCopy).
  virtual Ticket enqueue(std::span<const Copy> copies) = 0;
  // As enqueue, from memory of the device itself.
  virtual Ticket enqueue_local(std::span<const Copy> copies) = 0;
  // Bytes on the device as this process can read them, in `scratch` where it cannot read them in place.
  virtual const std::byte* read(const std::byte* at, std::size_t bytes, std::vector<std::byte>& scratch) = 0;
  // False where a copy is only pretended: there is nothing to verify then.
  virtual bool moves() const { return true; }
  // Whether all copies of the ticket have finished. Throws Error(kDeviceCopy) where one failed.
  virtual bool done(Ticket ticket) = 0;
  // When it is worth asking for the ticket if nobody rings before; kNever where the device rings, or cannot
  // say yet.
  virtual std::uint64_t due_ns(Ticket) const { return kNever; }
  // Whether copies have finished when enqueue returns.
  virtual bool prompt() const { return false; }
  // Gives everything back that it holds of the machine, its destination memory too. Idempotent; no other call
  // after.
  virtual void close() noexcept {}
  // Finishes or cancels everything in flight: no byte moves after it returns.
  virtual void drain() noexcept = 0;
  // Called by the device's own threads whenever a copy has finished; an empty function ends that, and returns
  // only when no call is under way.
  virtual void on_finished(std::function<void()> call) = 0;
  // For a device that rings only when asked: once, when this ticket has finished.
  virtual void ring_when_done(Ticket) {}

  // Host memory that was given to pin and not to unpin yet.
  struct Pinned {
    std::uint64_t pinned = 0, unpinned = 0;  // bytes
    std::string failure;                     // why the last unpinned ones are so
  };
  virtual Pinned pinned() const { return {}; }
  // Whether this process can read the destination in place.
  virtual bool readable() const { return true; }
  // The device's number as CUDA counts in this process; -1: its memory is the host's.
  virtual int cuda_ordinal() const { return -1; }
  // Where the device hangs on the machine, such as 0000:3b:00.0; empty: nowhere.
  virtual std::string bus_id() const { return {}; }

  // Streams of the device on which the model works. begin_layer is called before a layer's first copy is
  // enqueued, mark_layer behind its last one, end_layer when nothing of it moves any more, also if it failed.
  virtual std::uint32_t begin_layer() { return 0; }
  virtual void mark_layer(std::uint32_t) {}
  virtual void end_layer(std::uint32_t) noexcept {}
  // Work enqueued on `stream` from now on starts when the layer begun last is complete, or has failed.
  virtual void stream_wait(std::uintptr_t) { refuse_streams(); }
  // Copies of layers begun from now on start when the work enqueued on `stream` so far has finished.
  virtual void wait_for_stream(std::uintptr_t) { refuse_streams(); }

 private:
  [[noreturn]] void refuse_streams() const {
    refuse(Code::kState, "device " + describe() + " has no streams");
  }
};

std::shared_ptr<Device> make_host_device();

// A simulated bus; its destination is host memory.
struct LinkOptions {
  double bytes_per_second = 0;   // 0: as fast as memory
  std::uint64_t latency_ns = 0;  // added to each enqueued batch, not to its successors' start
  bool move = true;              // false: completion is paced, no byte moves
  std::uint64_t slow_ns = 0;     // every batch takes this much longer
  std::uint64_t fail_at = 0;     // the n-th batch fails; 0: none
  std::uint64_t hang_at = 0;     // the n-th batch never finishes; 0: none
};
std::shared_ptr<Device> make_link_device(const LinkOptions& options);

// An NVIDIA GPU, through its driver alone. Throws Error(kResource, kDeviceInit, kForked).
struct CudaOptions {
  std::string library;  // the driver's; empty: the usual one
  int ordinal = 0;      // as this process counts its devices
  bool strict = true;   // host memory that cannot be pinned is an error; else it is copied from all the same
  bool batch = false;   // all copies of a piece in one call, where the driver can
  std::uint64_t patience_ns = 10'000 * kMillisecond;  // for copies in flight when something has failed
};
std::shared_ptr<Device> make_cuda_device(const CudaOptions& options);

}  // namespace layercast
