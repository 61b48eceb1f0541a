// What the files of the pretended driver share: every function begins with ENTER.
#pragma once

#include <memory>

#include "measured.h"
#include "state.h"

using layercast::cuda::Context;
using layercast::cuda::DeviceHandle;
using layercast::cuda::Event;
using layercast::cuda::HostFunction;
using layercast::cuda::Stream;

#define API extern "C" __attribute__((visibility("default"))) Result

// The signatures of the tables that are held against the header: a definition with others does not compile.
#define DECLARE(name, parameters) API name parameters;
LAYERCAST_CUDA_FUNCTIONS(DECLARE)
LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(DECLARE)
LAYERCAST_CUDA_MEASURED_FUNCTIONS(DECLARE)
#undef DECLARE

Result enter(Fake& state, const char* name, bool needs_context, bool needs_init = true);

#define ENTER(name, needs_context)                                                                    \
  Fake& state = fake();                                                                               \
  Lock lock(state.mutex);                                                                             \
  if (const Result entered = enter(state, name, needs_context); entered != layercast::cuda::kSuccess) \
  return entered

CUctx_st* current();
Span* find(std::map<std::uintptr_t, Span>& spans, std::uintptr_t address);
std::shared_ptr<CUstream_st> alive(Fake& state, Stream handle, const char* function);
void push(Fake& state, CUstream_st& stream, std::function<void(Lock&)> item);
void in_flight(Fake& state, std::uintptr_t address, int more);
