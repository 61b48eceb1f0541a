// Functions of the driver that only benchmarks/gpu_checks calls, to measure whether the library should. Held
// against the header like the library's own table.
#pragma once

#include "devices/cuda_functions.h"

struct CUarray_st;
struct CUDA_MEMCPY2D_st;

namespace layercast::cuda {

inline constexpr Result kNotSupported = 801;
inline constexpr int kMemoryTypeHost = 1;

// CUDA_MEMCPY2D_st, version 2: rows of `width` bytes, each a pitch after the one before.
struct Copy2D {
  std::size_t from_x, from_y;
  int from_type;
  const void* from_host;
  Address from_device;
  CUarray_st* from_array;
  std::size_t from_pitch;
  std::size_t to_x, to_y;
  int to_type;
  void* to_host;
  Address to_device;
  CUarray_st* to_array;
  std::size_t to_pitch;
  std::size_t width, height;
};

}  // namespace layercast::cuda

#define LAYERCAST_CUDA_MEASURED_FUNCTIONS(X) \
  X(cuMemcpy2DAsync_v2, (const ::CUDA_MEMCPY2D_st* copy, ::layercast::cuda::Stream stream))
