"""Rank 0's thread: it serves every rank's connection, and knows nothing of what the messages mean."""

from __future__ import annotations

import array
import logging
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from layercast import rendezvous as rv

log = logging.getLogger("layercast")

_MOST_READS = 16  # more than a socket holds: a live peer that talks without end is no reason to stay


class Peer(Protocol):
    """Whoever rank 0 answers to: a connection, or rank 0 itself."""

    rank: int
    pid: int
    identity: rv.Identity | None  # once it has said who it is

    def send(self, message: Mapping[str, Any], fd: int = -1) -> None: ...

    def alive(self) -> bool: ...

    def evict(self, message: Mapping[str, Any]) -> None: ...


class Handler(Protocol):
    """What the messages mean. Called by the server's thread only. A Fault costs the sender its connection."""

    def received(self, peer: Peer, message: dict[str, Any]) -> None: ...

    def gone(self, peer: Peer, goodbye: bool) -> None: ...

    def ended(self) -> None: ...

    def last_words(self) -> Mapping[str, Any]: ...


class Connection:
    """Rank 0's end of a peer's socket. `rank` is -1 until the peer has said who it is."""

    def __init__(self, sock: socket.socket, server: Server) -> None:
        self.rank = -1
        self.pid, self.uid = rv.peer_credentials(sock)
        self.identity: rv.Identity | None = None
        self.sock = sock
        self.pidfd = rv.open_pidfd(self.pid)
        self.goodbye = False
        self.decoder = rv.Decoder(rv.MESSAGE_CAP)
        self.outbox: deque[tuple[memoryview, int]] = deque()
        self._server = server

    def send(self, message: Mapping[str, Any], fd: int = -1) -> None:
        """Queue a message, with a copy of `fd` if there is one. Who does not read is dropped."""
        self.outbox.append((memoryview(rv.encode({**message, "fd": fd >= 0})), os.dup(fd) if fd >= 0 else -1))
        self._server.flush(self)

    def flush(self) -> None:
        """Hand the kernel what it takes. A broken pipe shows when reading, after what was said before it."""
        try:
            while self.outbox:
                data, fd = self.outbox[0]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd >= 0 else []
                sent = self.sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
                if fd >= 0:
                    os.close(fd)  # the kernel has its own copy since the first byte
                self.outbox[0] = data[sent:], -1
                if sent == len(data):
                    self.outbox.popleft()
        except BlockingIOError:
            return
        except ConnectionError:
            self.discard()

    def discard(self) -> None:
        while self.outbox:
            _, fd = self.outbox.popleft()
            if fd >= 0:
                os.close(fd)

    def alive(self) -> bool:
        return self._server.check(self)

    def evict(self, message: Mapping[str, Any]) -> None:
        """The last word, for a peer that may never read it."""
        self.send(message)
        self._server.drop(self)

    def close(self) -> None:
        self.discard()
        self.sock.close()
        pidfd, self.pidfd = self.pidfd, -1
        if pidfd >= 0:
            os.close(pidfd)


class Server:
    """Rank 0's thread: accepts, reads and writes, asleep in poll() in between. No peer can hold it up."""

    def __init__(
        self,
        directory: rv.Directory,
        name: str,
        tp: int,
        handler: Handler,
        timeout: float | None,
        take_over: bool = False,
    ) -> None:
        self._directory = directory
        self._name = name
        self._capacity = tp + rv.BACKLOG
        self._outbox_cap = 16 * tp
        self._handler = handler
        self._listener = directory.listen(name, timeout, take_over)
        self._waker = rv.Waker()
        self._work: deque[Callable[[], None]] = deque()
        self._stopping = False
        self.connections: list[Connection] = []
        self._selector = selectors.PollSelector()  # no descriptor that a forked child would share
        self._watch(self._waker.fd, self._waker.clear)
        self._watch(self._listener.fileno(), self._accept)
        self.thread = threading.Thread(target=self._run, name=f"layercast {name}", daemon=True)
        self.thread.start()

    def post(self, work: Callable[[], None]) -> None:
        """Have the server's thread call `work`. From any thread, also from inside garbage collection."""
        self._work.append(work)
        self._waker.set()

    def stop(self) -> None:
        self._stopping = True
        self._waker.set()

    def abandon(self) -> None:
        """In a forked child: close this process's copies, and nothing else."""
        for connection in self.connections:
            connection.close()
        self._listener.close()
        self._waker.abandon()
        self._directory.close()

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, _ in self._selector.select():
                    key.data()
                while self._work:
                    self._guarded(self._work.popleft())
        finally:
            self._guarded(lambda: self._directory.remove(self._name))
            self._guarded(self._farewell)
            for connection in list(self.connections):
                self.drop(connection)
            self._listener.close()
            self._selector.close()
            self._waker.close()
            self._directory.close()
            self._handler.ended()

    def _watch(self, fd: int, work: Callable[[], object], connection: Connection | None = None) -> None:
        self._selector.register(fd, selectors.EVENT_READ, lambda: self._guarded(work, connection))

    def _guarded(self, work: Callable[[], object], connection: Connection | None = None) -> None:
        """A mistake in one event must not end the thread on which every rank depends."""
        try:
            work()
        except Exception:
            log.exception("group %r: rank 0's server thread", self._name)
            if connection is not None:
                self.drop(connection, "of the error above")

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors: the listener stays readable, so rest instead of spinning.
            log.warning("group %r cannot accept a rank: %s", self._name, error.strerror)
            time.sleep(0.1)
            return
        sock.setblocking(False)
        connection = Connection(sock, self)
        if connection.uid != os.geteuid():
            log.warning("group %r refuses pid %d of user %d", self._name, connection.pid, connection.uid)
            connection.close()
            return
        if len(self.connections) >= self._capacity:
            self.drop(next(c for c in self.connections if c.rank < 0), "too many connections said nothing")
        self.connections.append(connection)
        self._watch(sock.fileno(), lambda: self._ready(connection), connection)
        if connection.pidfd >= 0:
            self._watch(connection.pidfd, lambda: self.check(connection), connection)

    def _ready(self, connection: Connection) -> None:
        if connection in self.connections:
            self._read(connection)
        if connection in self.connections:
            self.flush(connection)

    def check(self, connection: Connection) -> bool:
        """Is the peer still there? If its process is dead, first hear what it said last."""
        dead = connection.pidfd >= 0 and rv.readable(connection.pidfd)
        for _ in range(_MOST_READS):
            if connection not in self.connections or not rv.readable(connection.sock.fileno()):
                break
            self._read(connection)
        if dead and connection in self.connections:
            self.drop(connection)
        return connection in self.connections

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(rv.MESSAGE_CAP)
            for message in connection.decoder.feed(data):
                if message.get("op") == "goodbye":
                    connection.goodbye = True
                    break
                self._handler.received(connection, message)
                if connection not in self.connections:
                    return
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        except rv.Fault as fault:
            self.drop(connection, f"it sent {fault}")
            return
        if not data or connection.goodbye:
            self.drop(connection)

    def flush(self, connection: Connection) -> None:
        if connection not in self.connections:
            connection.discard()
            return
        try:
            connection.flush()
        except OSError as error:
            self.drop(connection, f"sending failed: {error.strerror}")
            return
        if len(connection.outbox) > self._outbox_cap:
            self.drop(connection, "it does not read its messages")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        key = self._selector.get_key(connection.sock)
        if key.events != events:
            self._selector.modify(connection.sock, events, key.data)

    def drop(self, connection: Connection, why: str = "") -> None:
        if connection not in self.connections:
            return
        if why:
            log.warning("group %r drops the connection of pid %d: %s", self._name, connection.pid, why)
        self.connections.remove(connection)
        self._selector.unregister(connection.sock)
        if connection.pidfd >= 0:
            self._selector.unregister(connection.pidfd)
        connection.close()
        if not self._stopping:
            self._handler.gone(connection, connection.goodbye)

    def _farewell(self) -> None:
        deadline = time.monotonic() + rv.FAREWELL_S
        for connection in list(self.connections):
            connection.send({"op": "goodbye", **self._handler.last_words()})
        while waiting := [c for c in self.connections if c.outbox]:
            poll = select.poll()
            for connection in waiting:
                poll.register(connection.sock, select.POLLOUT)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return
            for connection in waiting:
                connection.flush()
