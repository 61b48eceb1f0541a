"""The driver itself, by ctypes: what a measurement compares must not depend on how this library does it.

Every signature and constant here is held against the CUDA header where one is installed
(tests/cuda/test_signatures.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

from gpu_checks.report import Check

if TYPE_CHECKING:
    import numpy as np


class Result(c_int):
    """CUresult, where it is an argument."""


class Address(ctypes.c_uint64):
    """CUdeviceptr"""


class Context(c_void_p):
    """CUcontext"""


class Stream(c_void_p):
    """CUstream"""


class Event(c_void_p):
    """CUevent"""


class Bytes(c_void_p):
    """const void*"""


class HostFunction(c_void_p):
    """CUhostFn"""


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D: rows of `WidthInBytes`, each a pitch after the one before. Named as in the header."""

    _fields_ = [
        ("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_int), ("srcHost", c_void_p),
        ("srcDevice", Address), ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_int), ("dstHost", c_void_p),
        ("dstDevice", Address), ("dstArray", c_void_p), ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t), ("Height", c_size_t),
    ]  # fmt: skip


class Constant(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_NOT_SUPPORTED = 801
    CU_STREAM_NON_BLOCKING = 1
    CU_EVENT_DISABLE_TIMING = 2
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CU_MEMHOSTREGISTER_DEVICEMAP = 2
    CU_MEMORYTYPE_HOST = 1
    CU_MEMORYTYPE_DEVICE = 2


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (Result, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(Context), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (Context,),
    "cuCtxPopCurrent_v2": (POINTER(Context),),
    "cuStreamCreate": (POINTER(Stream), c_uint),
    "cuStreamDestroy_v2": (Stream,),
    "cuStreamSynchronize": (Stream,),
    "cuStreamWaitEvent": (Stream, Event, c_uint),
    "cuEventCreate": (POINTER(Event), c_uint),
    "cuEventDestroy_v2": (Event,),
    "cuEventRecord": (Event, Stream),
    "cuEventQuery": (Event,),
    "cuLaunchHostFunc": (Stream, HostFunction, c_void_p),
    "cuMemAlloc_v2": (POINTER(Address), c_size_t),
    "cuMemFree_v2": (Address,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (POINTER(Address), c_void_p, c_uint),
    "cuMemcpyHtoDAsync_v2": (Address, Bytes, c_size_t, Stream),
    "cuMemcpyDtoHAsync_v2": (c_void_p, Address, c_size_t, Stream),
    "cuMemcpy2DAsync_v2": (POINTER(Copy2D), Stream),
    "cuStreamWriteValue32_v2": (Stream, Address, ctypes.c_uint32, c_uint),
}


class Lacks(Exception):
    """The driver has no such function, or says that it does not support it."""


class Driver:
    """The driver with a device's primary context current in this thread; everything made here ends with it."""

    def __init__(self, library: str, ordinal: int) -> None:
        try:
            self._library = ctypes.CDLL(library or "libcuda.so.1")
        except OSError as error:
            raise RuntimeError(f"there is no CUDA driver: {error}") from None
        self._undo = contextlib.ExitStack()
        self._streams: list[Stream] = []
        self._memory: list[Any] = []  # registered: must stay as long as it is
        self.call("cuInit", 0)
        device, context = c_int(), Context()
        self.call("cuDeviceGet", byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self._undo.callback(self._quietly, "cuDevicePrimaryCtxRelease_v2", device)
        self.call("cuCtxPushCurrent_v2", context)
        self._undo.callback(self._quietly, "cuCtxPopCurrent_v2", byref(Context()))

    def close(self) -> None:
        for stream in self._streams:  # nothing is freed that a copy may still touch
            self._quietly("cuStreamSynchronize", stream)
        self._undo.close()

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def function(self, name: str) -> Any:
        """The bare function, for loops that call nothing else. Raises Lacks."""
        if not self.has(name):
            raise Lacks(f"the driver has no {name}")
        found = getattr(self._library, name)
        found.argtypes, found.restype = SIGNATURES[name], c_int
        return found

    def call(self, name: str, *arguments: Any) -> None:
        """Raises Lacks, or RuntimeError with the function and the error's name."""
        self.check(name, self.function(name)(*arguments))

    def check(self, name: str, result: int) -> None:
        if result == Constant.CUDA_SUCCESS:
            return
        text = c_char_p()
        self.function("cuGetErrorName")(result, byref(text))
        words = f"{name} failed: {(text.value or b'unknown error').decode()} ({result})"
        if result == Constant.CUDA_ERROR_NOT_SUPPORTED:
            raise Lacks(words)
        raise RuntimeError(words)

    def stream(self) -> Stream:
        made = Stream()
        self.call("cuStreamCreate", byref(made), Constant.CU_STREAM_NON_BLOCKING)
        self._streams.append(made)
        self._undo.callback(self._quietly, "cuStreamDestroy_v2", made)
        return made

    def event(self) -> Event:
        made = Event()
        self.call("cuEventCreate", byref(made), Constant.CU_EVENT_DISABLE_TIMING)
        self._undo.callback(self._quietly, "cuEventDestroy_v2", made)
        return made

    def allocate(self, nbytes: int) -> int:
        made = Address()
        self.call("cuMemAlloc_v2", byref(made), nbytes)
        self._undo.callback(self._quietly, "cuMemFree_v2", made)
        return int(made.value)

    def pinned(self, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Host memory on pages of its own that has been touched, registered."""
        import numpy as np

        memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        skip = -memory.ctypes.data % mmap.PAGESIZE
        memory = memory[skip : skip + nbytes]
        memory[:: mmap.PAGESIZE] = 7
        self.register(memory)
        return memory

    def register(self, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        flags = Constant.CU_MEMHOSTREGISTER_PORTABLE | Constant.CU_MEMHOSTREGISTER_DEVICEMAP
        self._memory.append(memory)
        self.call("cuMemHostRegister_v2", memory.ctypes.data, memory.nbytes, flags)
        self._undo.callback(self._quietly, "cuMemHostUnregister", memory.ctypes.data)

    def there(self, address: int) -> int:
        """What the device calls registered host memory."""
        made = Address()
        self.call("cuMemHostGetDevicePointer_v2", byref(made), address, 0)
        return int(made.value)

    def _quietly(self, name: str, *arguments: Any) -> None:
        # On a device that has failed these fail too, and what came before has said why.
        self.function(name)(*arguments)


@contextlib.contextmanager
def opened_driver(check: Check) -> Iterator[Driver]:
    with contextlib.closing(Driver(check.driver, check.device)) as driver:
        yield driver
