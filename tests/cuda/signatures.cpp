// Compiled, never run: every function and constant of our tables against the driver's own header.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "../fake_cuda/measured.h"
#include "devices/cuda_functions.h"

namespace {

// An enum there is an int here; everything else must be the same type.
template <class Ours, class Theirs>
constexpr bool same() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return same<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return std::is_same_v<Ours, int> && sizeof(Theirs) == sizeof(int);
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <class R, class... P, class R2, class... P2>
constexpr bool same_function(R (*)(P...), R2 (*)(P2...)) {
  if constexpr (sizeof...(P) == sizeof...(P2)) return same<R, R2>() && (same<P, P2>() && ...);
  return false;
}

namespace cuda = layercast::cuda;

#define CHECK(name, parameters) \
  static_assert(same_function(static_cast<cuda::Result(*) parameters>(nullptr), decltype(&::name){}), #name);
LAYERCAST_CUDA_FUNCTIONS(CHECK)
LAYERCAST_CUDA_MEASURED_FUNCTIONS(CHECK)
#if CUDA_VERSION >= 13000
LAYERCAST_CUDA_OPTIONAL_FUNCTIONS(CHECK)
#endif

#define EQUAL(ours, theirs) \
  static_assert(static_cast<long>(cuda::ours) == static_cast<long>(theirs), #theirs);
EQUAL(kSuccess, CUDA_SUCCESS)
EQUAL(kInvalidValue, CUDA_ERROR_INVALID_VALUE)
EQUAL(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY)
EQUAL(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED)
EQUAL(kNoDevice, CUDA_ERROR_NO_DEVICE)
EQUAL(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE)
EQUAL(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT)
EQUAL(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE)
EQUAL(kNotReady, CUDA_ERROR_NOT_READY)
EQUAL(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS)
EQUAL(kAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
EQUAL(kNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
EQUAL(kUnknown, CUDA_ERROR_UNKNOWN)
EQUAL(kNotSupported, CUDA_ERROR_NOT_SUPPORTED)
EQUAL(kStreamNonBlocking, CU_STREAM_NON_BLOCKING)
EQUAL(kEventDisableTiming, CU_EVENT_DISABLE_TIMING)
EQUAL(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE)
EQUAL(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP)
EQUAL(kWaitValueGeq, CU_STREAM_WAIT_VALUE_GEQ)
EQUAL(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
EQUAL(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
EQUAL(kPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
EQUAL(kPointerRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE)
EQUAL(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE)
EQUAL(kMemoryTypeHost, CU_MEMORYTYPE_HOST)
#define PLACED(ours, theirs)                                                          \
  static_assert(offsetof(cuda::Copy2D, ours) == offsetof(CUDA_MEMCPY2D_st, theirs) && \
                    sizeof(cuda::Copy2D::ours) == sizeof(CUDA_MEMCPY2D_st::theirs),   \
                #theirs);
static_assert(sizeof(cuda::Copy2D) == sizeof(CUDA_MEMCPY2D_st));
PLACED(from_x, srcXInBytes)
PLACED(from_y, srcY)
PLACED(from_type, srcMemoryType)
PLACED(from_host, srcHost)
PLACED(from_device, srcDevice)
PLACED(from_array, srcArray)
PLACED(from_pitch, srcPitch)
PLACED(to_x, dstXInBytes)
PLACED(to_y, dstY)
PLACED(to_type, dstMemoryType)
PLACED(to_host, dstHost)
PLACED(to_device, dstDevice)
PLACED(to_array, dstArray)
PLACED(to_pitch, dstPitch)
PLACED(width, WidthInBytes)
PLACED(height, Height)
#if CUDA_VERSION >= 13000
EQUAL(kSourceAccessInStreamOrder, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
static_assert(sizeof(CUmemcpyAttributes_st) == sizeof(cuda::CopyAttributes));
static_assert(offsetof(CUmemcpyAttributes_st, srcLocHint) == offsetof(cuda::CopyAttributes, source_hint));
static_assert(offsetof(CUmemcpyAttributes_st, dstLocHint) ==
              offsetof(cuda::CopyAttributes, destination_hint));
static_assert(offsetof(CUmemcpyAttributes_st, flags) == offsetof(cuda::CopyAttributes, flags));
#endif

}  // namespace
