"""The fake CUDA driver: built here, steered from Python. See tests/fake_cuda."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_SOURCES = _ROOT / "tests" / "fake_cuda"
_NATIVE = _ROOT / "native"
_BUILT = _ROOT / "build" / "fake_cuda"


def build() -> Path:
    """The shared library, compiled anew where a source is newer; several processes may ask at once."""
    _BUILT.mkdir(parents=True, exist_ok=True)
    library = _BUILT / "libfake_cuda.so"
    sources = sorted(_SOURCES.glob("*.cpp"))
    newest = max(path.stat().st_mtime for path in [*_SOURCES.iterdir(), _NATIVE / "devices" / "cuda_functions.h"])
    with (_BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists() or library.stat().st_mtime < newest:
            compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or "c++"
            fresh = library.with_suffix(".new")
            options = ["-std=c++20", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
            command = [compiler, *options, "-pthread", f"-I{_NATIVE}", *map(str, sources), "-o", str(fresh)]
            subprocess.run(command, check=True)
            fresh.replace(library)
    return library


class FakeCuda:
    """The driver as this process has it. `set` takes bandwidth (B/s), latency_ns, devices, hold=1|0, lost_at and
    hang_at (the n-th copy from now), fail=function:n-th call from now:code."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cuda_number.restype = ctypes.c_uint64

    def set(self, *settings: str) -> None:
        self.library.fake_cuda_set(";".join(settings).encode())

    def reset(self) -> None:
        self.library.fake_cuda_reset()

    def number(self, what: str) -> int:
        """How many are alive (allocations, registrations, streams, events, retained), or were (copies, a function)."""
        return int(self.library.fake_cuda_number(what.encode()))

    @property
    def alive(self) -> dict[str, int]:
        return {what: self.number(what) for what in ("allocations", "registrations", "streams", "events", "retained")}

    def _text(self, what: str) -> list[str]:
        room = ctypes.create_string_buffer(1 << 20)
        self.library.fake_cuda_text(what.encode(), room, ctypes.c_size_t(len(room)))
        return room.value.decode().splitlines()

    @property
    def log(self) -> list[str]:
        return self._text("log")

    @property
    def violations(self) -> list[str]:
        return self._text("violations")


class ModelStream:
    """A stream as a model has one, made through the driver's own functions."""

    def __init__(self, fake: FakeCuda, ordinal: int = 0) -> None:
        self._driver = fake.library
        self._ordinal = ordinal
        self._functions: list[object] = []
        self._context = ctypes.c_void_p()
        assert self._driver.cuInit(0) == 0
        assert self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), ordinal) == 0
        assert self._driver.cuCtxPushCurrent_v2(self._context) == 0
        self._stream = ctypes.c_void_p()
        assert self._driver.cuStreamCreate(ctypes.byref(self._stream), 1) == 0

    @property
    def handle(self) -> int:
        return int(self._stream.value or 0)

    @property
    def idle(self) -> bool:
        return bool(self._driver.cuStreamQuery(self._stream) == 0)

    def call(self, function: object) -> None:
        """A kernel, as it were: a C function of (void*) -> void."""
        self._functions.append(function)  # the stream may call it after whoever made it has gone
        assert self._driver.cuLaunchHostFunc(self._stream, function, None) == 0

    def close(self) -> None:
        self._driver.cuStreamSynchronize(self._stream)
        assert self._driver.cuStreamDestroy_v2(self._stream) == 0
        popped = ctypes.c_void_p()
        assert self._driver.cuCtxPopCurrent_v2(ctypes.byref(popped)) == 0
        assert self._driver.cuDevicePrimaryCtxRelease_v2(self._ordinal) == 0
