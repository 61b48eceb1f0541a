"""A rank's way to rank 0. Rank 0 has one to itself, so a call means the same on every rank."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from layercast import rendezvous as rv
from layercast.errors import ConfigError, JoinTimeout, PeerClosed, PeerDied, ResourceError, StateError
from layercast.hub import Hub, Losses
from layercast.server import Server

log = logging.getLogger("layercast")

_SEND_LIMIT_S = 5.0
_LOOK_MS = 500  # between looks whether the group has another rank 0


class _Pending:
    """One call that waits for its reply."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.reply: dict[str, Any] = {}
        self.fd = -1


class Link:
    """A rank's way to rank 0: calls that block until they are answered or rank 0 is gone."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._lock = threading.RLock()
        self.over: dict[str, Any] | None = None  # the failure that every call gets from now on

    def call(
        self, message: Mapping[str, Any], patience: rv.Patience, *, ask: bool = True
    ) -> tuple[dict[str, Any], int]:
        """Send, wait, and return the reply with its descriptor (or -1).

        `ask`: before a log line or a time-out, ask rank 0 who is missing.
        """
        number, pending = next(self._numbers), _Pending()
        data = self._encode({**message, "id": number})
        with self._lock:
            if self.over is not None:
                raise rv.raised(self.over)
            self._pending[number] = pending
        try:
            self._transmit(data)
            while not pending.ready.wait(patience.begin()):
                if ask:
                    self._name_missing(number, patience)
                patience.end()
            if "error" in pending.reply:
                raise rv.raised(pending.reply)
            fd, pending.fd = pending.fd, -1
            return pending.reply, fd
        finally:
            self._leave(number, pending)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send, and expect no answer."""
        self._transmit(self._encode({**message, "id": 0}))

    def _encode(self, message: Mapping[str, Any]) -> bytes:
        try:
            data = rv.encode(message)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{message['op']}: this cannot be sent as JSON: {error}") from error
        if len(data) > rv.MESSAGE_CAP:
            raise ConfigError(f"{message['op']}: {len(data):,} bytes of JSON, {rv.MESSAGE_CAP:,} are allowed")
        return data

    def _name_missing(self, number: int, patience: rv.Patience) -> None:
        with contextlib.suppress(JoinTimeout):  # rank 0 itself may be stopped; the wait then keeps its words
            reply, _ = self.call({"op": "who", "about": number}, rv.Patience(1.0, "", ""), ask=False)
            patience.whom, patience.rank = reply["whom"] or patience.whom, reply["rank"]

    def _leave(self, number: int, pending: _Pending) -> None:
        """The call is over, answered or not."""
        with self._lock:
            self._pending.pop(number, None)
            fd, pending.fd = pending.fd, -1
        if fd >= 0:
            os.close(fd)
        if not pending.ready.is_set():  # timed out or interrupted: rank 0 must not count on this call
            self._transmit(rv.encode({"op": "forget", "id": 0, "about": number}))

    def deliver(self, message: dict[str, Any], fd: int = -1) -> None:
        """An answer has come. Its descriptor belongs to the call, or is closed if nobody waits any more."""
        with self._lock:
            pending = self._pending.pop(message.get("id", 0), None)
            if pending is not None:
                pending.reply, pending.fd = message, fd
                pending.ready.set()
            elif fd >= 0:
                os.close(fd)

    def finish(self, failure: dict[str, Any]) -> None:
        """No answer will come any more."""
        with self._lock:
            self.over = failure
            waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.reply = failure
            pending.ready.set()

    def _transmit(self, data: bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def abandon(self) -> None:
        """In a forked child: close this process's copies, and nothing else."""
        raise NotImplementedError


def _join(thread: threading.Thread) -> None:
    if thread is threading.current_thread():
        return  # closed from a callback: the thread cleans up when that returns
    thread.join(5.0)
    if thread.is_alive():
        log.warning("thread %r still runs 5 s after close: is a callback stuck?", thread.name)


class LocalLink(Link):
    """Rank 0's own link, and the peer that the hub sees in it."""

    def __init__(self, hub: Hub, directory: rv.Directory, timeout: float | None, take_over: bool = False) -> None:
        super().__init__()
        self.rank, self.pid = 0, os.getpid()
        self.identity: rv.Identity | None = rv.Identity.own()
        self._hub = hub
        hub.seats[0] = self
        hub.on_end = lambda: self.finish(rv.failure(StateError, f"group {hub.name!r} is closed"))
        self._server = Server(directory, hub.name, hub.tp, hub, timeout, take_over)
        self._directory = directory

    def _transmit(self, data: bytes) -> None:
        message = json.loads(data[4:])
        self._server.post(lambda: self._hub.received(self, message))

    def send(self, message: Mapping[str, Any], fd: int = -1) -> None:
        self.deliver(dict(message), os.dup(fd) if fd >= 0 else -1)

    def alive(self) -> bool:
        return True

    def evict(self, message: Mapping[str, Any]) -> None:
        raise AssertionError("rank 0 is taken over by its name, not by a message")

    @property
    def displaced(self) -> bool:
        """Whether another process has become rank 0 of the group."""
        return self.over is None and self._directory.displaced(self._hub.name)

    def close(self) -> None:
        self._server.stop()
        _join(self._server.thread)

    def abandon(self) -> None:
        self._server.abandon()
        self._hub.drop_shares()


class RemoteLink(Link):
    """Another rank's link: a socket to rank 0, and a thread that sleeps on it."""

    def __init__(
        self, sock: socket.socket, group: str, tp: int, losses: Losses, displaced: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__()
        self.kernel_pid, _ = rv.peer_credentials(sock)  # 0 where it lies in a pid namespace beside ours
        self.server = rv.Identity(self.kernel_pid, 0, 0)  # until it has said who it is
        self.seated = False  # rank 0 has accepted us: from here on its end is a loss
        self._sock = sock
        self._group = group
        self._losses = losses
        self._displaced = displaced  # whether another process has become rank 0
        self._decoder = rv.Decoder(rv.MESSAGE_CAP * (tp + 1))
        self._fds: deque[int] = deque()
        self._pidfd = rv.open_pidfd(self.kernel_pid)
        self._waker = rv.Waker()
        self._sending = threading.RLock()
        self._verdict: dict[str, Any] | None = None  # why this side ends the connection
        self._thread = threading.Thread(target=self._run, name=f"layercast {group}", daemon=True)
        self._thread.start()

    def _transmit(self, data: bytes) -> None:
        """Send it whole. On a broken connection the reader has the word: it sees what rank 0 said last."""
        with self._sending, contextlib.suppress(OSError, ValueError):
            view = memoryview(data)
            while view:
                try:
                    view = view[self._sock.send(view, socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    poll = select.poll()
                    poll.register(self._sock, select.POLLOUT)
                    if not poll.poll(_SEND_LIMIT_S * 1000):
                        text = f"rank 0 (pid {self.pid}) has read nothing for {_SEND_LIMIT_S:.0f} s"
                        self._end(rv.failure(JoinTimeout, text, 0, self.pid))
                        return

    def _end(self, verdict: dict[str, Any]) -> None:
        self._verdict = self._verdict or verdict
        self._waker.set()

    def _run(self) -> None:
        end: dict[str, Any] = {}
        try:
            end = self._listen() or rv.failure(
                PeerDied, f"rank 0 (pid {self.pid}) of group {self._group!r} died", 0, self.pid
            )
        except rv.Fault as fault:
            end = rv.failure(PeerDied, f"rank 0 (pid {self.pid}) sent {fault}", 0, self.pid)
        finally:
            self.finish(end)
            self._release()
        if end["error"] == "PeerDied" and end["rank"] == 0 and self.seated:
            log.warning("%s", end["text"])
            self._losses.report(0, self.server)

    @property
    def pid(self) -> int:
        """Rank 0's, as it calls itself."""
        return self.server.pid

    def seat(self, reply: Mapping[str, Any]) -> None:
        """Rank 0 has accepted us, and said who it is."""
        self.server = rv.Identity.said(reply).seen_as(self.kernel_pid)
        self.seated = True

    def _listen(self) -> dict[str, Any] | None:
        """Deliver answers until one side ends; returns the failure that every later call gets, None: it died."""
        poll = select.poll()
        sock = self._sock.fileno()
        for fd in (sock, self._waker.fd, self._pidfd):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(_LOOK_MS)]
            if not ready:  # a rank 0 that lives and says nothing may have a successor
                if not self._displaced():
                    continue
                text = f"rank 0 (pid {self.pid}) of group {self._group!r} has been replaced by another process"
                return rv.failure(PeerDied, text, 0, self.pid)
            if self._verdict is not None:
                return self._verdict
            if sock not in ready:
                return None  # only its process's end is left: all that it had said has been read
            data = self._receive()
            if not data:
                return None
            for message in self._decoder.feed(data):
                if message.get("op") == "goodbye" and "error" in message:
                    cause = {key: message[key] for key in ("error", "text", "rank", "pid")}
                    return {**cause, "text": f"{cause['text']}; then rank 0 (pid {self.pid}) closed"}
                if message.get("op") == "goodbye":
                    text = f"rank 0 (pid {self.pid}) of group {self._group!r} closed"
                    return rv.failure(PeerClosed, text, 0, self.pid)
                if message.get("op") == "evicted":
                    return {key: message[key] for key in ("error", "text", "rank", "pid")}
                self._answer(message)

    def _receive(self) -> bytes:
        """The next bytes; nothing at the end. Descriptors that came along are kept in their order."""
        size = array.array("i").itemsize
        try:
            data, parts, _, _ = self._sock.recvmsg(1 << 16, socket.CMSG_SPACE(8 * size), socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return b""
        for level, kind, content in parts:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds.extend(array.array("i", content[: len(content) // size * size]))
        return data

    def _answer(self, message: dict[str, Any]) -> None:
        if not message.get("fd"):
            self.deliver(message)
        elif self._fds:
            self.deliver(message, self._fds.popleft())
        else:  # the kernel drops what it cannot put into this process's table
            text = "no file descriptor is left in this process for shared memory"
            self.deliver({"id": message.get("id"), **rv.failure(ResourceError, text, pid=os.getpid())})

    def _release(self) -> None:
        with self._sending:  # a number just closed may name another file already
            self._sock.close()
        self._waker.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._fds.append(self._pidfd)
        self._pidfd = -1
        while self._fds:
            if (fd := self._fds.popleft()) >= 0:
                os.close(fd)

    def close(self) -> None:
        if self.over is None and self._verdict is None:
            with self._sending:  # the word first: rank 0 hangs up as soon as it has read the goodbye
                self._verdict = rv.failure(StateError, f"group {self._group!r} is closed")
                self._transmit(rv.encode({"op": "goodbye"}))
                self._waker.set()
        _join(self._thread)

    def abandon(self) -> None:
        self._sock.close()
        self._waker.abandon()
        self._close_descriptors()
