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
  // Finishes or cancels everything in flight: no byte moves after it returns.
  virtual void drain() noexcept = 0;
  // Called by the device's own threads whenever a copy has finished; an empty function ends that, and returns
  // only when no call is under way.
  virtual void on_finished(std::function<void()> call) = 0;
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

}  // namespace layercast
