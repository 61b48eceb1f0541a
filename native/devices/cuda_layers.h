// What streams of the model and the copies wait for in each other, without a host thread in between.
//
// An event stands behind a layer's last copy: that is what a stream waits for once it is there. Before,
// a word of host memory holds the number of the last layer that is complete. The copy stream writes it behind
// a layer's last copy; a stream of the model that waits for the layer waits for the word. Where a layer
// fails, the host writes it, so that no stream waits for ever; wait() then raises.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device.h"
#include "devices/cuda_context.h"

namespace layercast::cuda {

class Layers {
 public:
  explicit Layers(const Primary& primary) : primary_(primary) {}

  // All with the context current, but for begin and end.
  void open();
  // False: work of the model that may read the destination, or the word, has not ended in time; they must
  // stay.
  bool close(std::uint64_t patience_ns) noexcept;
  void mark(std::uint32_t layer, Stream copies);
  // Behind all fences that were set before the layer in work was begun.
  void wait_for_consumed(Stream copies);

  std::uint32_t begin();
  void end(std::uint32_t layer) noexcept;
  void make_wait(Stream stream);
  void consumed(Stream stream);

 private:
  void check_stream(Stream stream) const;
  void record(Stream stream, std::vector<Event>& into);
  bool all_over(std::uint64_t until_ns) const noexcept;

  const Primary& primary_;
  std::atomic<std::uint32_t>* word_ = nullptr;
  Address word_there_ = 0;
  std::string why_not_;  // why streams cannot wait for a layer
  std::atomic<std::uint32_t> begun_{0};
  std::mutex mutex_;                 // of the events
  Event marked_ = nullptr;           // behind the last copy of a layer,
  std::uint32_t marked_layer_ = 0;   // of this one
  std::vector<Event> fences_, due_;  // recorded; and to be waited for by the layer in work
  std::vector<Event> waits_;         // each behind a stream's wait: the word must outlive it
  std::vector<Event> spare_;
};

// All copies in one call, where the driver has it; else false, and nothing was done.
bool copy_batch(const Driver& driver, std::span<const Copy> copies, Stream stream, const Primary& primary);

}  // namespace layercast::cuda
