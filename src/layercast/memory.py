"""Shared memory without a name: reserved when created, sealed against resizing, gone with its last user.

The bytes live in a memfd. Nothing stands in /dev/shm, so a small one does not matter and a killed process
leaves nothing behind. The C library is called directly, because a mapping that Python's `mmap` holds cannot
be unmapped while an array still looks at it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from layercast.errors import ConfigError, ResourceError, StateError

# Not every build of Python offers these, though the kernel does: values from linux/fcntl.h, memfd.h, mman.h.
_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SEALS = {1: "F_SEAL_SEAL", 2: "F_SEAL_SHRINK", 4: "F_SEAL_GROW"}
_ALL_SEALS = sum(_SEALS)
_MAP_FAILED = ctypes.c_void_p(-1).value

# A signal restarts fallocate from its beginning; in steps it gets on all the same.
_RESERVE_STEP = 256 << 20
_V1_NO_LIMIT = 1 << 60

_libc = ctypes.CDLL(None, use_errno=True)
_libc.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_memoryview_from_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_memoryview_from_memory.restype = ctypes.py_object
_memoryview_from_memory.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]
_PYBUF_WRITE = 0x200


@dataclass(frozen=True)
class Headroom:
    """Bytes that can be reserved now, and the limit that says so."""

    nbytes: int
    limit: str


def headroom(root: Path = Path("/")) -> Headroom:
    """The smallest of the host's available memory and what each enclosing cgroup still allows, in bytes.

    A cgroup allows its limit minus its usage, plus the file cache in that usage: the kernel gives that up
    first. `root` is where /proc and the cgroup file systems are looked for.
    """
    host = Headroom(_host_available(root / "proc/meminfo"), "host memory (MemAvailable in /proc/meminfo)")
    return min([host, *_cgroup_headrooms(root)], key=lambda room: room.nbytes)


def _host_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ResourceError(f"{meminfo} has no line MemAvailable", hint="Linux 3.14 or later is needed")


def _cgroup_headrooms(root: Path) -> Iterator[Headroom]:
    for directory, version in _cgroup_directories(root):
        if version == 2:
            names, stats = ("memory.max", "memory.current"), ("inactive_file", "active_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            stats = ("total_inactive_file", "total_active_file")
        try:
            limit, used = ((directory / name).read_text().strip() for name in names)
            stat = dict(line.split(maxsplit=1) for line in (directory / "memory.stat").read_text().splitlines())
        except FileNotFoundError:
            continue  # the top of a hierarchy, or one without the memory controller: no limit there
        if limit == "max" or int(limit) >= _V1_NO_LIMIT:
            continue
        cache = sum(int(stat.get(name, 0)) for name in stats)
        room = max(0, int(limit) - int(used) + cache)
        yield Headroom(room, f"cgroup {directory} ({names[0]} {limit}, used {used}, of that file cache {cache})")


def _cgroup_directories(root: Path) -> Iterator[tuple[Path, int]]:
    """Directories of this process's cgroups that may limit memory, innermost first, with the version."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return
    paths = {}
    for line in memberships:
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            paths[2 if number == "0" else 1] = path
    for line in mounts:
        left, right = line.split(" - ", 1)
        top, point = left.split()[3:5]
        kind, _, options = right.split(maxsplit=2)
        version = 2 if kind == "cgroup2" else 1
        if version not in paths or kind not in ("cgroup", "cgroup2"):
            continue
        if version == 1 and "memory" not in options.split(","):
            continue
        yield from ((each, version) for each in _upwards(root, point, top, paths[version]))


def _upwards(root: Path, point: str, top: str, path: str) -> Iterator[Path]:
    """From the cgroup `path` up to the mount `point`, which shows the hierarchy from `top` on."""
    mount = root / point.replace("\\040", " ").lstrip("/")
    inside = Path(path)
    below = inside.relative_to(top) if inside.is_relative_to(top) and ".." not in inside.parts else Path()
    for depth in range(len(below.parts), -1, -1):
        yield mount.joinpath(*below.parts[:depth])


class SharedMemory:
    """Bytes that several processes map. `create` makes them, `attach` maps what another process created.

    Attributes: `label` (for messages), `nbytes`, `fd` (to hand to other processes), `address` (page aligned),
    `generation` (set by whoever shares it), `view` (a memoryview of all bytes).
    After `close` no pointer or array into it may be used any more: the pages are really gone.
    """

    def __init__(self, fd: int, nbytes: int, label: str) -> None:
        """Map `fd`, which belongs to this object from here on. Callers use `create` and `attach`."""
        self.label = label
        self.nbytes = nbytes
        self.generation = 0
        self._open: list[tuple[int, int]] = []
        address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            reason = os.strerror(ctypes.get_errno())
            os.close(fd)
            raise ResourceError(f"cannot map {nbytes:,} bytes for {label!r}: {reason}")
        self._open.append((fd, address))
        self._view: memoryview = _memoryview_from_memory(address, nbytes, _PYBUF_WRITE)

    @classmethod
    def create(cls, label: str, nbytes: int) -> SharedMemory:
        """Reserve `nbytes` of zeroes; ResourceError, with bytes wanted and available, if that cannot be."""
        if nbytes <= 0:
            raise ConfigError(f"shared memory {label!r} needs at least 1 byte, not {nbytes}")
        room = headroom()
        if nbytes > room.nbytes:
            raise _too_little(label, nbytes, room, "")
        name = f"layercast:{label}".replace("\0", "?").encode()[:200]
        fd = _libc.memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
        if fd < 0:
            raise ResourceError(f"no memfd for {label!r}: {os.strerror(ctypes.get_errno())}")
        try:
            os.ftruncate(fd, nbytes)
        except OSError as error:
            os.close(fd)
            raise _too_little(label, nbytes, headroom(), f": {error.strerror}") from error
        memory = cls(fd, nbytes, label)
        try:
            for start in range(0, nbytes, _RESERVE_STEP):
                os.posix_fallocate(fd, start, min(_RESERVE_STEP, nbytes - start))
            fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
        except BaseException as error:
            memory.close()
            if isinstance(error, OSError):
                raise _too_little(label, nbytes, headroom(), f": {error.strerror}") from error
            raise
        return memory

    @classmethod
    def attach(cls, fd: int, nbytes: int, label: str) -> SharedMemory:
        """Map what `create` made in another process. `fd` is taken over, and closed if it is refused.

        ConfigError when its size is not `nbytes` or when it could still be resized under its users.
        """
        try:
            _check_shape(fd, nbytes, label)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, nbytes, label)

    @property
    def fd(self) -> int:
        return self._here()[0]

    @property
    def address(self) -> int:
        return self._here()[1]

    @property
    def view(self) -> memoryview:
        self._here()
        return self._view

    def _here(self) -> tuple[int, int]:
        try:
            return self._open[0]
        except IndexError:
            raise StateError(f"shared memory {self.label!r} is closed") from None

    def close(self) -> None:
        """Unmap the bytes and close the descriptor. Idempotent, never raises, callable from any thread."""
        try:
            fd, address = self._open.pop()  # one atomic step: of two closing threads one finds nothing
        except IndexError:
            return
        with contextlib.suppress(BufferError):  # an array still looks at it; the pages go all the same
            self._view.release()
        _libc.munmap(address, self.nbytes)
        os.close(fd)

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def __repr__(self) -> str:
        return f"<SharedMemory {self.label!r} {self.nbytes:,} bytes{'' if self._open else ', closed'}>"


def _check_shape(fd: int, nbytes: int, label: str) -> None:
    size = os.fstat(fd).st_size
    if size != nbytes:
        raise ConfigError(f"shared memory {label!r} has {size:,} bytes, {nbytes:,} were expected")
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ConfigError(f"shared memory {label!r} is an ordinary file, a sealed memfd was expected") from error
    if missing := [name for bit, name in _SEALS.items() if not seals & bit]:
        raise ConfigError(
            f"shared memory {label!r} has the seals {seals:#x}, {_ALL_SEALS:#x} were expected: without"
            f" {', '.join(missing)} another process could resize it"
        )


def _too_little(label: str, nbytes: int, room: Headroom, reason: str) -> ResourceError:
    return ResourceError(
        f"cannot reserve {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB) for {label!r}{reason}; available:"
        f" {room.nbytes:,} bytes ({room.nbytes / 2**30:.2f} GiB), limited by {room.limit}"
    )
