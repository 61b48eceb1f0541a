"""How the ranks of a group find each other and talk: a Unix socket in a private directory.

    runtime directory (0700, ours)            rank 0                       rank 1, 2, ...
  NAME.layercast <--- bind, listen, rename -- Server: one thread,  <----- connect; hello, calls
                                              asleep in poll() ------> replies, goodbye

A message is a 4-byte big-endian length and as many bytes of a JSON object; a descriptor may travel beside it.
Who is at the other end, and whether that process still lives, is what the kernel says (SO_PEERCRED, pidfd).
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import logging
import math
import os
import re
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from layercast import _native
from layercast.errors import (
    AgreementError,
    ConfigError,
    JoinTimeout,
    LayercastError,
    PeerClosed,
    PeerDied,
    ResourceError,
    StateError,
    Superseded,
)

log = logging.getLogger("layercast")

PROTOCOL = 1
MESSAGE_CAP = 64 << 10  # bytes of one message from a rank; replies of rank 0 may hold one from every rank
REPORT_EVERY_S = 30.0
FAREWELL_S = 1.0  # how long a closing rank 0 tries to get rid of its last messages
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SUFFIX, _DRAFT = ".layercast", ".layercast-draft"
BACKLOG = 64  # connections that have not said who they are

_SYS_PIDFD_OPEN = 434  # the same on every architecture; not every build of Python offers os.pidfd_open
_libc = ctypes.CDLL(None, use_errno=True)
_HEADER = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_Kind = TypeVar("_Kind")
_TRAVELLING: Mapping[str, type[LayercastError]] = {
    cls.__name__: cls
    for cls in (AgreementError, ConfigError, JoinTimeout, PeerClosed, PeerDied, ResourceError, StateError, Superseded)
}


@dataclass(frozen=True)
class Identity:
    """A process, as it knows itself: in containers every rank may be pid 1."""

    pid: int
    started: int  # clock ticks since boot
    space: int  # its pid namespace; 0: unknown

    @classmethod
    def own(cls) -> Identity:
        return cls(*_native.identity())

    @classmethod
    def said(cls, message: Mapping[str, Any]) -> Identity:
        return cls(*(field(message, key, int) for key in ("pid", "started", "space")))

    def seen_as(self, pid: int) -> Identity:
        """`pid` is the kernel's word; where it means the same here as there it counts."""
        return dataclasses.replace(self, pid=pid) if pid > 0 and self.space == Identity.own().space else self


def checked_name(name: str) -> str:
    """The group's name. ConfigError where it is none."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    shown = f"{name!r:.100}"
    length = f" of {len(name)} characters" if isinstance(name, str) and len(name) > 64 else ""
    raise ConfigError(f"group name {shown}{length}: 1 to 64 letters, digits, '.', '_' or '-' are allowed")


class Fault(Exception):
    """What came over a socket is not this protocol."""


def encode(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(len(body)) + body


def field(message: Mapping[str, Any], key: str, kind: type[_Kind]) -> _Kind:
    value = message.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Fault(f"{key!r} is {value!r:.80}, not of type {kind.__name__}")
    return value


def failure(cls: type[LayercastError], text: str, rank: int = -1, pid: int = 0) -> dict[str, Any]:
    """An error as it travels in a reply."""
    return {"error": cls.__name__, "text": text, "rank": rank, "pid": pid}


def raised(message: Mapping[str, Any]) -> LayercastError:
    """The error that `failure` described."""
    return _TRAVELLING[message["error"]](message["text"], rank=message["rank"], pid=message["pid"])


class Decoder:
    """Cuts a byte stream into messages of at most `cap` bytes. Raises Fault on anything else."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if not 0 < length <= self._cap:
                raise Fault(f"a message of {length} bytes, 1 to {self._cap} are allowed")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise Fault(f"a message that is not JSON: {error}") from error
            if not isinstance(message, dict):
                raise Fault(f"a message that is no JSON object but {type(message).__name__}")
            yield message


class Patience:
    """Counts a wait of at most `limit` seconds (None: no limit), and logs who is awaited every 30 s.

    Time in which this process itself was stopped does not count. JoinTimeout at the limit.
    """

    def __init__(self, limit: float | None, who: str, whom: str, rank: int = -1) -> None:
        self.limit = math.inf if limit is None else limit
        self.who = who
        self.whom = whom
        self.rank = rank  # the awaited rank, if it is one
        self.waited = 0.0
        self._reported = 0.0
        self._slice = self._since = 0.0

    def begin(self, most: float = math.inf) -> float:
        """Seconds to block now, at most."""
        self._since = time.monotonic()
        to_report = self._reported + REPORT_EVERY_S - self.waited
        self._slice = max(0.0, min(most, to_report, self.limit - self.waited))
        return self._slice

    def end(self) -> None:
        """Blocked, and in vain."""
        self.waited += min(time.monotonic() - self._since, self._slice + 0.25)
        if self.waited >= self.limit:
            raise JoinTimeout(f"{self.who} waited {self.waited:.1f} s for {self.whom}", rank=self.rank)
        if self.waited >= self._reported + REPORT_EVERY_S:
            self._reported = self.waited
            log.warning("%s has waited %.0f s for %s", self.who, self.waited, self.whom)


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of who connected or listened; the pid is 0 if it lies in another pid namespace."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel cannot say.

    An end of file alone is no proof of life: a dead process's own children keep its sockets open.
    """
    if pid <= 0:
        return -1
    return int(_libc.syscall(ctypes.c_long(_SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0)))


def is_dead(pid: int) -> bool:
    if pid <= 0:
        return False
    if (pidfd := open_pidfd(pid)) < 0:
        return not Path(f"/proc/{pid}").exists()
    try:
        return readable(pidfd)
    finally:
        os.close(pidfd)


def readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class Waker:
    """Ends another thread's sleep in poll()."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.RLock()  # garbage collection may close a group from inside `set`

    def set(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        with self._lock:
            self.abandon()

    def abandon(self) -> None:
        """As `close`, for a forked child, where no thread is left that would release the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Directory:
    """The run-time directory, held open. Made if absent; refused if somebody else could write into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bound: os.stat_result | None = None  # the socket that stands here for us
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"run-time directory {path}: {error.strerror}") from error
        found = os.fstat(self.fd)
        fault = ""
        if found.st_uid != os.geteuid():
            fault = f"belongs to user {found.st_uid}, this process is user {os.geteuid()}"
        elif stat.S_IMODE(found.st_mode) & 0o077:
            fault = f"has mode {stat.S_IMODE(found.st_mode):04o}, at most 0700 is allowed"
        if fault:
            self.close()
            raise ConfigError(f"run-time directory {path} {fault}", hint="others could take over the group")

    def _at(self, name: str) -> str:
        """The address of a socket here: short, however long the directory's own path is."""
        return f"/proc/self/fd/{self.fd}/{name}{_SUFFIX}"

    @contextlib.contextmanager
    def _locked(self, patience: Patience) -> Iterator[None]:
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(patience.begin(0.01))
                patience.end()
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def listen(self, name: str, timeout: float | None, take_over: bool = False) -> socket.socket:
        """Become rank 0 of group `name`. ConfigError if a live process is that already; it is named.

        `take_over`: its place is ours all the same, and whoever is connected to it notices.
        """
        patience = Patience(timeout, f"rank 0 of group {name!r}", f"the lock of {self.path}")
        with self._locked(patience):
            if (pid := self._holder(name)) is not None and not take_over:
                raise ConfigError(
                    f"group {name!r} has a rank 0 already: pid {pid}",
                    hint="if it hangs: end it, or start with take_over=True",
                    rank=0,
                    pid=pid,
                )
            self._sweep()
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                # Listening before it gets its name: whoever finds the name finds somebody who answers.
                draft = Path(self._at(name)).with_suffix(_DRAFT)
                draft.unlink(missing_ok=True)
                sock.bind(str(draft))
                sock.listen(BACKLOG)
                self._bound = draft.stat()
                draft.rename(self._at(name))
            except BaseException:
                sock.close()
                raise
        return sock

    def _sweep(self) -> None:
        """Remove what killed processes have left: sockets that nobody answers, drafts that nobody finished.

        The directory may be anybody's who named it: what is no socket of a group's name is not ours.
        """
        for entry in os.listdir(self.fd):  # noqa: PTH208 - a descriptor has no path
            name, kind = os.path.splitext(entry)  # noqa: PTH122
            if kind not in (_SUFFIX, _DRAFT) or not NAME.fullmatch(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                ours = stat.S_ISSOCK(os.stat(entry, dir_fd=self.fd, follow_symlinks=False).st_mode)
                if ours and (kind == _DRAFT or self._holder(name) is None):
                    os.unlink(entry, dir_fd=self.fd)

    def discard(self, name: str) -> None:
        """Remove the socket of a rank 0 that is dead."""
        patience = Patience(FAREWELL_S, f"group {name!r}", f"the lock of {self.path}")
        with self._locked(patience):
            if self._holder(name) is None:
                with contextlib.suppress(FileNotFoundError):
                    Path(self._at(name)).unlink()

    def _holder(self, name: str) -> int | None:
        """The pid of the live rank 0 (0: cannot be told), or None; a killed process leaves a dead socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(self._at(name))
            except (FileNotFoundError, ConnectionRefusedError):
                return None
            except BlockingIOError:
                return 0  # its queue is full
            pid, _ = peer_credentials(probe)
        return None if is_dead(pid) else pid

    def connect(self, name: str) -> socket.socket | None:
        """A connection to the live rank 0 of group `name`, or None if there is none yet."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.connect(self._at(name))
            pid, uid = peer_credentials(sock)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            sock.close()
            return None
        if uid != os.geteuid():
            sock.close()
            raise ConfigError(f"rank 0 of group {name!r} runs as user {uid}, this process as {os.geteuid()}")
        if is_dead(pid):
            sock.close()
            return None
        return sock

    def stamp(self, name: str) -> tuple[int, int]:
        """What tells one rank 0's socket from its successor's; zeros where there is none."""
        try:
            found = os.stat(f"{name}{_SUFFIX}", dir_fd=self.fd)
        except FileNotFoundError:
            return 0, 0
        return found.st_dev, found.st_ino

    def holds(self, name: str) -> bool:
        """Whether a rank 0's socket of that name lies here, whoever left it."""
        return self.stamp(name) != (0, 0)

    def displaced(self, name: str) -> bool:
        """Whether the name that `listen` made is another's by now."""
        now = self.stamp(name)
        return self._bound is not None and now != (0, 0) and now != (self._bound.st_dev, self._bound.st_ino)

    def remove(self, name: str) -> None:
        """Remove the name that `listen` made, unless a successor has it already."""
        patience = Patience(FAREWELL_S, f"rank 0 of group {name!r}", f"the lock of {self.path}")
        with self._locked(patience), contextlib.suppress(FileNotFoundError):
            place = Path(self._at(name))
            if self._bound and os.path.samestat(self._bound, place.stat()):
                place.unlink()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
