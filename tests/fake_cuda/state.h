// What the pretended driver knows. One mutex and one condition for all of it: it need not be fast, only
// right.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "devices/cuda_functions.h"

using layercast::cuda::Address;
using layercast::cuda::Result;
using Lock = std::unique_lock<std::mutex>;

struct CUctx_st {
  int ordinal = 0;
  int retained = 0;
  Result sticky = 0;  // what every call answers once the device has fallen off
  std::uint64_t engine_free_ns = 0;
  std::shared_ptr<CUstream_st> legacy;  // stream 0
};

struct CUevent_st {
  CUctx_st* context = nullptr;
  std::uint64_t recorded = 0, reached = 0;
};

struct CUstream_st {
  CUctx_st* context = nullptr;
  std::deque<std::function<void(Lock&)>> work;
  bool busy = false, closing = false;
  std::thread worker;
};

struct Span {
  std::uintptr_t begin, end;
  int ordinal = 0;
  int in_flight = 0;
};

struct Injection {
  std::uint64_t nth = 0;  // call, from 1; 0: none
  Result code = 0;
};

struct Fake {
  std::mutex mutex;
  std::condition_variable changed;
  // Settings.
  int devices = 4;
  double bytes_per_second = 0;
  std::uint64_t latency_ns = 0;
  std::uint64_t lost_at = 0, hang_at = 0;  // copy, from 1
  std::uint64_t hold = 0;                  // copies stand still while it is not 0
  std::map<std::string, Injection> failing;
  // State.
  pid_t initialised_by = 0;
  std::vector<CUctx_st*> contexts;
  std::map<CUstream_st*, std::shared_ptr<CUstream_st>> streams;
  std::map<CUevent_st*, std::shared_ptr<CUevent_st>> events;
  std::map<std::uintptr_t, Span> allocations, registrations;
  // For the tests.
  std::map<std::string, std::uint64_t> calls;
  std::vector<std::string> log, violations;
  std::uint64_t copies = 0, copied_bytes = 0, pageable_copies = 0, host_functions = 0;
};

Fake& fake();
void configure(Fake& state, const std::string& text);
std::uint64_t now_ns();
