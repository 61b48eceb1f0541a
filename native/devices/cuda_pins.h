// Host memory registered with the driver, so that copies from it are asynchronous and at the bus's full
// speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "devices/cuda_context.h"

namespace layercast::cuda {

class Pins {
 public:
  Pins(const Primary& primary, bool strict) : primary_(primary), strict_(strict) {}

  // Registers exactly these bytes, large ones in chunks, several at a time. Where that fails: strict, all of
  // them are given back and Error(kResource) is thrown; else the rest is counted as unpinned.
  void add(std::byte* address, std::size_t bytes);
  void remove(std::byte* address) noexcept;
  void remove_all() noexcept;
  Device::Pinned count() const;

  // A copy must not reach across the border of a registration: the driver refuses that.
  void split(std::span<const Copy> copies, std::vector<Copy>& parts) const;

 private:
  struct Chunk {
    std::byte* address;
    std::size_t bytes;
    Result result = kNotReady;  // as long as nobody tried
    bool ours() const { return result == kSuccess; }
    // Whoever registered it before us also ends that.
    bool pinned() const { return result == kSuccess || result == kAlreadyRegistered; }
  };
  void register_all(std::vector<Chunk>& chunks) const;
  void unregister(const std::vector<Chunk>& chunks) const noexcept;
  std::string words(const std::vector<Chunk>& chunks) const;

  const Primary& primary_;
  const bool strict_;
  mutable std::mutex mutex_;
  std::map<std::byte*, std::vector<Chunk>> pins_;
  std::vector<std::byte*> order_;                         // of registration: given back from the last
  std::map<const std::byte*, const std::byte*> borders_;  // begin -> end of every chunk
  std::string failure_;
};

}  // namespace layercast::cuda
