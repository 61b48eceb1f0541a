#include "devices/cuda_layers.h"

#include <sys/mman.h>

#include <chrono>
#include <thread>

namespace layercast::cuda {

namespace {

constexpr std::size_t kPage = 4096;

bool reached(std::uint32_t word, std::uint32_t layer) { return static_cast<std::int32_t>(word - layer) >= 0; }

}  // namespace

void Layers::open() {
  const Driver& driver = primary_.driver();
  if (driver.cuStreamWaitValue32_v2 == nullptr || driver.cuStreamWriteValue32_v2 == nullptr) {
    why_not_ = "its driver (" + driver.version_text() + ") has no stream memory operations";
    return;
  }
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) refuse(Code::kResource, "cuda: could not reserve a page of host memory");
  word_ = new (page) std::atomic<std::uint32_t>(0);
  Result result = driver.cuMemHostRegister_v2(page, kPage, kHostRegisterPortable | kHostRegisterDeviceMap);
  if (result != kSuccess) {
    munmap(page, kPage);
    word_ = nullptr;
    why_not_ = "cuMemHostRegister of the word that they wait for failed: " + driver.words(result);
    return;
  }
  result = driver.cuMemHostGetDevicePointer_v2(&word_there_, page, 0);
  if (result == kSuccess) return;
  word_there_ = 0;
  why_not_ = "cuMemHostGetDevicePointer failed: " + driver.words(result);
  static_cast<void>(driver.cuMemHostUnregister(page));
  munmap(page, kPage);
  word_ = nullptr;
}

bool Layers::close(std::uint64_t patience_ns) noexcept {
  const Driver& driver = primary_.driver();
  // Whoever still waits for a layer that will never come goes on.
  end(begun_.load());
  const bool over = all_over(add_saturated(now_ns(), patience_ns));
  if (word_ != nullptr && over && driver.cuMemHostUnregister(word_) == kSuccess) munmap(word_, kPage);
  word_ = nullptr;
  word_there_ = 0;
  if (marked_ != nullptr) static_cast<void>(driver.cuEventDestroy_v2(marked_));
  marked_ = nullptr;
  for (std::vector<Event>* events : {&fences_, &due_, &waits_, &spare_}) {
    for (const Event event : *events) static_cast<void>(driver.cuEventDestroy_v2(event));
    events->clear();
  }
  return over;
}

// Streams of the model have passed their waits and their fences.
bool Layers::all_over(std::uint64_t until_ns) const noexcept {
  for (const std::vector<Event>* events : {&waits_, &fences_, &due_}) {
    for (const Event event : *events) {
      while (primary_.driver().cuEventQuery(event) == kNotReady) {
        if (now_ns() > until_ns) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }
  return true;
}

void Layers::record(Stream stream, std::vector<Event>& into) {
  const Driver& driver = primary_.driver();
  if (spare_.empty()) {
    Event event = nullptr;
    primary_.check(driver.cuEventCreate(&event, kEventDisableTiming), "cuEventCreate", Code::kDeviceCopy);
    spare_.push_back(event);
  }
  primary_.check(driver.cuEventRecord(spare_.back(), stream), "cuEventRecord", Code::kDeviceCopy);
  into.push_back(spare_.back());
  spare_.pop_back();
}

std::uint32_t Layers::begin() {
  const std::lock_guard lock(mutex_);
  due_.insert(due_.end(), fences_.begin(), fences_.end());
  fences_.clear();
  return ++begun_;
}

void Layers::mark(std::uint32_t layer, Stream copies) {
  const Driver& driver = primary_.driver();
  if (word_there_ != 0) {
    primary_.check(driver.cuStreamWriteValue32_v2(copies, word_there_, layer, 0), "cuStreamWriteValue32",
                   Code::kDeviceCopy);
  }
  const std::lock_guard lock(mutex_);
  if (marked_ == nullptr) {
    primary_.check(driver.cuEventCreate(&marked_, kEventDisableTiming), "cuEventCreate", Code::kDeviceCopy);
  }
  primary_.check(driver.cuEventRecord(marked_, copies), "cuEventRecord", Code::kDeviceCopy);
  marked_layer_ = layer;
}

void Layers::end(std::uint32_t layer) noexcept {
  if (word_ == nullptr) return;
  std::uint32_t seen = word_->load();
  while (!reached(seen, layer) && !word_->compare_exchange_weak(seen, layer)) {
  }
}

void Layers::check_stream(Stream stream) const {
  Context context = nullptr;
  primary_.check(primary_.driver().cuStreamGetCtx(stream, &context), "cuStreamGetCtx", Code::kArgument,
                 "the given stream");
  if (context == primary_.context()) return;
  refuse(Code::kArgument, "stream: expected one of device " + std::to_string(primary_.ordinal()) +
                              "'s primary context, got another context's");
}

void Layers::make_wait(Stream stream) {
  const Driver& driver = primary_.driver();
  const Current current(primary_);
  check_stream(stream);
  const std::lock_guard lock(mutex_);
  if (marked_ != nullptr && marked_layer_ == begun_.load()) {
    // All its copies are in the stream already: an order that the driver knows of serves better than a word.
    primary_.check(driver.cuStreamWaitEvent(stream, marked_, 0), "cuStreamWaitEvent", Code::kDeviceCopy);
    return;
  }
  if (word_there_ == 0) {
    refuse(Code::kState, "cuda device " + std::to_string(primary_.ordinal()) +
                             ": streams cannot wait for a layer whose copies are not all enqueued: " +
                             why_not_ + "; wait on the host, or ask again after run");
  }
  primary_.check(driver.cuStreamWaitValue32_v2(stream, word_there_, begun_.load(), kWaitValueGeq),
                 "cuStreamWaitValue32", Code::kDeviceCopy);
  std::erase_if(waits_, [this](Event event) {
    if (primary_.driver().cuEventQuery(event) == kNotReady) return false;
    spare_.push_back(event);
    return true;
  });
  record(stream, waits_);
}

void Layers::consumed(Stream stream) {
  const Current current(primary_);
  check_stream(stream);
  const std::lock_guard lock(mutex_);
  record(stream, fences_);
}

void Layers::wait_for_consumed(Stream copies) {
  const std::lock_guard lock(mutex_);
  while (!due_.empty()) {
    primary_.check(primary_.driver().cuStreamWaitEvent(copies, due_.back(), 0), "cuStreamWaitEvent",
                   Code::kDeviceCopy);
    spare_.push_back(due_.back());
    due_.pop_back();
  }
}

bool copy_batch(const Driver& driver, std::span<const Copy> copies, Stream stream, const Primary& primary) {
  if (copies.size() < 2) return false;
  std::vector<Address> to, from;
  std::vector<std::size_t> bytes;
  for (const Copy& copy : copies) {
    to.push_back(reinterpret_cast<std::uintptr_t>(copy.to));
    from.push_back(reinterpret_cast<std::uintptr_t>(copy.from));
    bytes.push_back(copy.bytes);
  }
  CopyAttributes attributes{kSourceAccessInStreamOrder, {0, 0}, {0, 0}, 0};
  std::size_t first = 0;
  primary.check(
      driver.cuMemcpyBatchAsync_v2(to.data(), from.data(), bytes.data(), copies.size(),
                                   reinterpret_cast<CUmemcpyAttributes_st*>(&attributes), &first, 1, stream),
      "cuMemcpyBatchAsync", Code::kDeviceCopy, std::to_string(copies.size()) + " copies");
  return true;
}

}  // namespace layercast::cuda
