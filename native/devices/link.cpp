// A simulated bus. Completion follows a timeline (start after the predecessor's end, then bytes / bandwidth),
// so a late wake-up delays one acknowledgement but never the bus. Where bytes move, a thread of the device
// moves them, after enqueue has returned: whoever reuses a slot early corrupts bytes here as on a real bus.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "copy.h"
#include "device.h"
#include "devices/host_memory.h"
#include "error.h"

namespace layercast {

namespace {

class LinkDevice final : public Device {
 public:
  explicit LinkDevice(const LinkOptions& options) : options_(options) {
    if (options.move) mover_ = std::thread([this] { move_all(); });
  }
  ~LinkDevice() override {
    drain();
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    if (mover_.joinable()) mover_.join();
  }

  std::string describe() const override {
    return "link:" + std::to_string(options_.bytes_per_second / 1e9) + "GB/s";
  }
  std::byte* allocate(std::size_t bytes) override { return memory_.allocate(bytes, options_.move); }
  void adopt(std::byte* address, std::size_t bytes) override { HostMemory::check(address, bytes); }
  void pin(std::byte*, std::size_t) override {}
  void unpin(std::byte*) noexcept override {}

  Ticket enqueue(std::span<const Copy> copies) override {
    std::uint64_t bytes = 0;
    for (const Copy& copy : copies) bytes += copy.bytes;
    const double seconds =
        options_.bytes_per_second > 0 ? static_cast<double>(bytes) / options_.bytes_per_second : 0.0;
    const std::lock_guard lock(mutex_);
    Batch batch;
    batch.ticket = ++last_;
    engine_free_ns_ =
        std::max(engine_free_ns_, now_ns()) + static_cast<std::uint64_t>(seconds * 1e9) + options_.slow_ns;
    batch.due_ns = add_saturated(engine_free_ns_, options_.latency_ns);
    batch.fails = batch.ticket == options_.fail_at;
    batch.hangs = batch.ticket == options_.hang_at;
    if (options_.move) {
      batch.copies.assign(copies.begin(), copies.end());
      work_.notify_one();
    } else {
      batch.moved = true;
    }
    queue_.push_back(std::move(batch));
    return last_;
  }

  // Inside the device: not the bus's affair.
  Ticket enqueue_local(std::span<const Copy> copies) override {
    for (const Copy& copy : copies) copy_out(copy.to, copy.from, copy.bytes);
    const std::lock_guard lock(mutex_);
    return last_;
  }
  const std::byte* read(const std::byte* at, std::size_t, std::vector<std::byte>&) override { return at; }
  bool moves() const override { return options_.move; }

  bool done(Ticket ticket) override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t now = now_ns();
    while (!queue_.empty() && queue_.front().ticket <= ticket) {
      const Batch& front = queue_.front();
      if (front.hangs || !front.moved || front.due_ns > now) return false;
      if (front.fails) {
        refuse(Code::kDeviceCopy,
               "link device: copy " + std::to_string(front.ticket) + " failed as it was told to");
      }
      queue_.pop_front();
    }
    return true;
  }

  std::uint64_t due_ns(Ticket ticket) const override {
    const std::lock_guard lock(mutex_);
    for (const Batch& batch : queue_) {
      if (!batch.moved || batch.hangs) return kNever;
      if (batch.ticket == ticket) return batch.due_ns;
    }
    return kNever;
  }

  void drain() noexcept override {
    std::unique_lock lock(mutex_);
    for (Batch& batch : queue_) {
      if (!batch.moving) batch.moved = true;  // not begun: cancelled
    }
    idle_.wait(lock, [this] {
      return std::none_of(queue_.begin(), queue_.end(), [](const Batch& b) { return b.moving; });
    });
    queue_.clear();
    engine_free_ns_ = 0;
  }

  void on_finished(std::function<void()> call) override {
    const std::lock_guard lock(mutex_);
    finished_ = std::move(call);
  }

 private:
  struct Batch {
    Ticket ticket = 0;
    std::uint64_t due_ns = 0;
    bool moved = false, moving = false, fails = false, hangs = false;
    std::vector<Copy> copies;
  };

  Batch* next_to_move() {
    for (Batch& batch : queue_) {
      if (batch.hangs && !batch.moved) return nullptr;  // an engine works in order
      if (!batch.moved && !batch.moving) return &batch;
    }
    return nullptr;
  }

  void move_all() {
    pthread_setname_np(pthread_self(), "layercast-link");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals belong to the caller's threads
    std::unique_lock lock(mutex_);
    for (;;) {
      Batch* batch = nullptr;
      work_.wait(lock, [&] { return stop_ || (batch = next_to_move()) != nullptr; });
      if (stop_) return;
      batch->moving = true;  // a deque keeps elements in place while others are pushed and popped
      lock.unlock();
      if (!batch->fails) {
        for (const Copy& copy : batch->copies) copy_out(copy.to, copy.from, copy.bytes);
      }
      lock.lock();
      batch->moved = true;
      batch->moving = false;
      idle_.notify_all();
      if (finished_) finished_();
    }
  }

  const LinkOptions options_;
  HostMemory memory_;
  mutable std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<Batch> queue_;
  std::function<void()> finished_;
  std::uint64_t engine_free_ns_ = 0;
  Ticket last_ = 0;
  bool stop_ = false;
  std::thread mover_;
};

}  // namespace

std::shared_ptr<Device> make_link_device(const LinkOptions& options) {
  // T25: in a forked child its thread does not exist, and nobody may wait for it.
  return {new LinkDevice(options), [owner = getpid()](const LinkDevice* device) {
            if (getpid() == owner) delete device;
          }};
}

}  // namespace layercast
