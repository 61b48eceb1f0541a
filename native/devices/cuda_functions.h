// The functions of the CUDA driver that this library calls, with their documented signatures. No CUDA header
// is needed to build; where one is installed, a test holds this table against it
// (tests/cuda/test_signatures.py).
#pragma once

#include <cstddef>
#include <cstdint>

// The driver's handles, named as in its header so that both may stand in one file.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmemcpyAttributes_st;

namespace layercast::cuda {

using Result = int;  // an enum there, of the same size
using DeviceHandle = int;
using Address = unsigned long long;
using Context = CUctx_st*;
using Stream = CUstream_st*;
using Event = CUevent_st*;
using HostFunction = void (*)(void*);

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kUnknown = 999,
};
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2;
inline constexpr unsigned kWaitValueGeq = 0;
inline constexpr int kPointerMemoryType = 2, kPointerDeviceOrdinal = 9, kPointerRangeStart = 11,
                     kPointerRangeSize = 12;
inline constexpr unsigned kMemoryTypeDevice = 2;

// CUmemcpyAttributes_st.
inline constexpr int kSourceAccessInStreamOrder = 1;
struct CopyAttributes {
  int source_access_order;
  struct {
    int type, id;
  } source_hint, destination_hint;
  unsigned flags;
};

}  // namespace layercast::cuda

// X(name, parameters). A name ends in _v2 where the header maps the plain one to it.
#define LAYERCAST_CUDA_FUNCTIONS(X)                                                                         \
  X(cuInit, (unsigned flags))                                                                               \
  X(cuDriverGetVersion, (int* version))                                                                     \
  X(cuGetErrorName, (::layercast::cuda::Result error, const char** name))                                   \
  X(cuGetErrorString, (::layercast::cuda::Result error, const char** text))                                 \
  X(cuDeviceGetCount, (int* count))                                                                         \
  X(cuDeviceGet, (::layercast::cuda::DeviceHandle * device, int ordinal))                                   \
  X(cuDeviceGetName, (char* name, int length, ::layercast::cuda::DeviceHandle device))                      \
  X(cuDeviceGetPCIBusId, (char* id, int length, ::layercast::cuda::DeviceHandle device))                    \
  X(cuDeviceTotalMem_v2, (std::size_t* bytes, ::layercast::cuda::DeviceHandle device))                      \
  X(cuDevicePrimaryCtxRetain,                                                                               \
    (::layercast::cuda::Context * context, ::layercast::cuda::DeviceHandle device))                         \
  X(cuDevicePrimaryCtxRelease_v2, (::layercast::cuda::DeviceHandle device))                                 \
  X(cuCtxPushCurrent_v2, (::layercast::cuda::Context context))                                              \
  X(cuCtxPopCurrent_v2, (::layercast::cuda::Context * context))                                             \
  X(cuStreamCreate, (::layercast::cuda::Stream * stream, unsigned flags))                                   \
  X(cuStreamDestroy_v2, (::layercast::cuda::Stream stream))                                                 \
  X(cuStreamQuery, (::layercast::cuda::Stream stream))                                                      \
  X(cuStreamSynchronize, (::layercast::cuda::Stream stream))                                                \
  X(cuStreamGetCtx, (::layercast::cuda::Stream stream, ::layercast::cuda::Context * context))               \
  X(cuStreamWaitEvent, (::layercast::cuda::Stream stream, ::layercast::cuda::Event event, unsigned flags))  \
  X(cuEventCreate, (::layercast::cuda::Event * event, unsigned flags))                                      \
  X(cuEventDestroy_v2, (::layercast::cuda::Event event))                                                    \
  X(cuEventRecord, (::layercast::cuda::Event event, ::layercast::cuda::Stream stream))                      \
  X(cuEventQuery, (::layercast::cuda::Event event))                                                         \
  X(cuLaunchHostFunc,                                                                                       \
    (::layercast::cuda::Stream stream, ::layercast::cuda::HostFunction function, void* user))               \
  X(cuMemGetInfo_v2, (std::size_t* free, std::size_t* total))                                               \
  X(cuMemAlloc_v2, (::layercast::cuda::Address * address, std::size_t bytes))                               \
  X(cuMemFree_v2, (::layercast::cuda::Address address))                                                     \
  X(cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned flags))                               \
  X(cuMemHostUnregister, (void* address))                                                                   \
  X(cuMemHostGetDevicePointer_v2, (::layercast::cuda::Address * there, void* here, unsigned flags))         \
  X(cuPointerGetAttributes,                                                                                 \
    (unsigned count, int* attributes, void** data, ::layercast::cuda::Address address))                     \
  X(cuMemcpyHtoDAsync_v2,                                                                                   \
    (::layercast::cuda::Address to, const void* from, std::size_t bytes, ::layercast::cuda::Stream stream)) \
  X(cuMemcpyDtoHAsync_v2,                                                                                   \
    (void* to, ::layercast::cuda::Address from, std::size_t bytes, ::layercast::cuda::Stream stream))       \
  X(cuMemcpyDtoDAsync_v2, (::layercast::cuda::Address to, ::layercast::cuda::Address from,                  \
                           std::size_t bytes, ::layercast::cuda::Stream stream))

// Newer drivers have these; what needs them is refused where they are missing.
#define LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(X)                                                        \
  X(cuStreamWaitValue32_v2, (::layercast::cuda::Stream stream, ::layercast::cuda::Address address,  \
                             std::uint32_t value, unsigned flags))                                  \
  X(cuStreamWriteValue32_v2, (::layercast::cuda::Stream stream, ::layercast::cuda::Address address, \
                              std::uint32_t value, unsigned flags))                                 \
  X(cuMemcpyBatchAsync_v2,                                                                          \
    (::layercast::cuda::Address * to, ::layercast::cuda::Address * from, std::size_t* bytes,        \
     std::size_t count, ::CUmemcpyAttributes_st* attributes, std::size_t* attribute_starts,         \
     std::size_t attribute_count, ::layercast::cuda::Stream stream))
