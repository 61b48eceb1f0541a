"""The group: ranks of one machine that share memory, meet, and notice each other's end."""

from __future__ import annotations

import os
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from layercast import rendezvous as rv
from layercast.config import Environment
from layercast.errors import ConfigError, ForkError, PeerClosed, PeerDied, Superseded
from layercast.hub import Hub, Losses, Lost, Refusal
from layercast.link import Link, LocalLink, RemoteLink
from layercast.memory import SharedMemory

__all__ = ["Group", "Refusal"]


def _displaced(path: Path, name: str, stamp: tuple[int, int]) -> bool:
    """Whether the group's socket is another one than `stamp` says; one that is gone says nothing."""
    try:
        directory = rv.Directory(path)
    except ConfigError:
        return False
    try:
        return directory.stamp(name) not in ((0, 0), stamp)
    finally:
        directory.close()


@dataclass(frozen=True)
class _Plain:
    """A callback that wants the process's number only."""

    callback: Callable[[int, int], None]

    def __call__(self, rank: int, who: rv.Identity) -> None:
        self.callback(rank, who.pid)


# Groups whose descriptors a fork copies. A child that kept them would keep a dead rank's connections open, and across
# pid namespaces their end is all that tells of its death. The interpreter's hook is one for all, hence this list.
_open: weakref.WeakSet[Group] = weakref.WeakSet()


def _abandon_after_fork() -> None:
    for group in list(_open):
        for link in group._links:
            link.abandon()
    _open.clear()


os.register_at_fork(after_in_child=_abandon_after_fork)


def _close(links: list[Link], owner: int) -> None:
    """`links` holds the group's link of now: a rank that outlives rank 0 gets another."""
    for link in links:
        if os.getpid() == owner:
            link.close()
        else:
            link.abandon()


class Group:
    """One rank's place in a group of `tp` ranks on this machine, found by name.

    Rank 0 serves the group and waits for nobody here; the others wait up to `timeout` seconds (None: no
    limit) for it. Ranks start in any order, and a rank whose process has ended may be taken by a new one;
    with `take_over` also one whose process still lives, stopped or stuck: it is out of the group from then on.
    Errors: ConfigError (a rank or name that is taken or impossible, a run-time directory that others can
    write to), AgreementError (tp or the library's protocol differ), JoinTimeout.

    Attributes: `name`, `rank`, `tp`, `timeout`; `replaces`: the pid of the process whose place this one has taken,
    or 0. A context manager; after a fork the child's copy is inert.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        tp: int,
        *,
        timeout: float | None = 600.0,
        runtime_dir: str | os.PathLike[str] | None = None,
        take_over: bool = False,
    ) -> None:
        rv.checked_name(name)
        if tp < 1 or not 0 <= rank < tp:
            raise ConfigError(f"rank {rank} of tp={tp}: a rank from 0 to tp - 1 is needed")
        self.name, self.rank, self.tp = name, rank, tp
        self.timeout = _checked(timeout)
        self.replaces = 0
        self._owner = os.getpid()
        self._who = f"rank {rank} (pid {self._owner}) of group {name!r}"
        self._losses = Losses()
        self._counts: Counter[str] = Counter()
        self._hub = Hub(name, tp, self._losses)
        self._path = Path(runtime_dir) if runtime_dir is not None else Environment.read().runtime_dir
        directory = rv.Directory(self._path)
        try:
            self._links: list[Link] = [
                LocalLink(self._hub, directory, timeout, take_over)
                if rank == 0
                else self._join(directory, timeout, take_over)
            ]
        except BaseException:
            directory.close()
            raise
        _open.add(self)
        # Runs when the group is forgotten, and at the interpreter's exit while threads still run.
        weakref.finalize(self, _close, self._links, self._owner)

    @classmethod
    def from_environment(cls, *, timeout: float | None = 600.0) -> Group:
        """The group of this machine's torchrun processes. ConfigError names the variables that are amiss."""
        place = Environment.read().torchrun()
        return cls(place.name, place.rank, place.tp, timeout=timeout)

    @classmethod
    def alone(cls) -> Group:
        """A group of this process only."""
        return cls(f"alone-{os.getpid()}-{secrets.token_hex(4)}", 0, 1)

    @property
    def _link(self) -> Link:
        return self._links[0]

    @property
    def broken(self) -> bool:
        """Whether a rank is known to have ended and nobody has taken its place: on rank 0 any, else rank 0."""
        self._refuse_after_fork()
        link = self._link
        if isinstance(link, LocalLink) and link.displaced:
            return True
        if isinstance(link, RemoteLink):
            return link.over is not None or rv.is_dead(link.kernel_pid)
        return bool(self._losses.known)

    def rejoin(self, timeout: float | None = None) -> None:
        """Where rank 0 has ended: wait up to `timeout` seconds (None: the group's) for the one that replaces it.

        Nothing happens where rank 0 lives, or on rank 0 itself. Raises JoinTimeout, AgreementError, and Superseded
        where this process's own place has been taken over.
        """
        self._refuse_after_fork()
        link = self._link
        if isinstance(link, LocalLink) and link.displaced:
            text = f"the place of {self._who} was taken over by another process"
            raise Superseded(text, hint="close the transport and the group, and end", rank=0, pid=self._owner)
        if link.over is not None and link.over["error"] == Superseded.__name__:
            raise rv.raised(link.over)
        if not isinstance(link, RemoteLink) or not self.broken:
            return
        link.close()
        directory = rv.Directory(self._path)
        try:
            self._links[0] = self._join(directory, self.timeout if timeout is None else _checked(timeout))
        except BaseException:
            directory.close()
            raise
        self._losses.replaced(0)

    def _join(self, directory: rv.Directory, timeout: float | None, take_over: bool = False) -> RemoteLink:
        me = {"rank": self.rank, "tp": self.tp, **vars(rv.Identity.own())}
        hello = {"op": "hello", "protocol": rv.PROTOCOL, "take_over": take_over, **me}
        absent = f"rank 0 to start (nobody serves group {self.name!r} in {directory.path})"
        patience = rv.Patience(timeout, self._who, absent, 0)
        pause = 0.001
        while True:
            stamp = directory.stamp(self.name)
            sock = directory.connect(self.name)
            if sock is not None and directory.stamp(self.name) != stamp:
                sock.close()  # another rank 0 than the one looked at
                continue
            if sock is not None:
                displaced = partial(_displaced, self._path, self.name, stamp)
                link = RemoteLink(sock, self.name, self.tp, self._losses, displaced)
                patience.whom = f"rank 0 (pid {link.pid}) to answer"
                try:
                    reply, _ = link.call(hello, patience, ask=False)
                    # A rank 0 that is new itself does not know whose place this one took from the last.
                    self.replaces = reply["replaces"] or self.replaces
                    link.seat(reply)
                    directory.close()
                    return link
                except (PeerDied, PeerClosed):
                    link.close()  # it ended just now: wait for its successor
                except BaseException:
                    link.close()
                    raise
                patience.whom = absent
            time.sleep(patience.begin(pause))
            patience.end()
            pause = min(pause * 2, 0.1)

    def _call(self, message: Mapping[str, Any], timeout: float | None, whom: str) -> tuple[dict[str, Any], int]:
        self._refuse_after_fork()
        limit = self.timeout if timeout is None else _checked(timeout)
        return self._link.call(message, rv.Patience(limit, self._who, whom), ask=message["op"] != "register")

    def _refuse_after_fork(self) -> None:
        if os.getpid() != self._owner:
            raise ForkError(
                f"group {self.name!r} belongs to pid {self._owner}, not to its fork {os.getpid()}",
                hint="create it after fork",
            )

    def share(
        self,
        tag: str,
        nbytes: int,
        *,
        agree: Mapping[str, int | str | list[Any]] | None = None,
        prepare: Callable[[SharedMemory], None] | None = None,
        newer_than: int = 0,
        timeout: float | None = None,
    ) -> SharedMemory:
        """Memory of `nbytes` bytes that all ranks map: made on rank 0, found by `tag` on the others.

        Rank 0 returns at once; the others wait for it up to `timeout` seconds (None: the group's). `nbytes`
        and every key of `agree` must be equal on all ranks: AgreementError, on the rank that differs, names
        the key and both values. `prepare` fills the memory on rank 0 before any other rank can see it. Where rank 0
        shares a tag anew, the memory's `generation` grows; `newer_than` waits for a later one than that. Other errors:
        ResourceError, JoinTimeout, PeerDied, PeerClosed. The caller closes it.
        """
        self._refuse_after_fork()
        asked = {**(agree or {}), "nbytes": nbytes}
        label = f"{self.name}/{tag}"
        if self.rank != 0:
            whom = f"rank 0 (pid {self.peers.get(0, 0)}) to {'recover' if newer_than else 'share'} {tag!r}"
            message = {"op": "share", "tag": tag, "asked": asked, "newer_than": newer_than}
            reply, fd = self._call(message, timeout, whom)
            memory = SharedMemory.attach(fd, nbytes, label)
            memory.generation = reply["generation"]
            return memory
        memory = SharedMemory.create(label, nbytes)
        try:
            if prepare is not None:
                prepare(memory)
            self.publish(tag, memory, agree=agree, timeout=timeout)
        except BaseException:
            memory.close()
            raise
        return memory

    def publish(
        self,
        tag: str,
        memory: SharedMemory,
        *,
        agree: Mapping[str, int | str | list[Any]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """On rank 0, what `share` hands out: memory that exists, in the generation that it gets here."""
        memory.generation = time.monotonic_ns()  # grows on this machine, whoever is rank 0
        asked = {**(agree or {}), "nbytes": memory.nbytes}
        fd = os.dup(memory.fd)  # the hub's own: it outlives the caller's object
        try:
            message = {"op": "register", "tag": tag, "asked": asked, "generation": memory.generation, "fd": fd}
            self._call(message, timeout, "its own thread")
        except BaseException:
            os.close(fd)
            raise

    def next_tag(self, kind: str) -> str:
        """A tag for the next shared object of its kind: equal on all ranks if they make them in the same order."""
        self._counts[kind] += 1
        return f"{kind}-{self._counts[kind]}"

    def unshare(self, tag: str, generation: int = 0) -> None:
        """Rank 0 hands `tag` (0: whatever its generation) out no more: PeerClosed for whoever asks.

        Those who have the memory keep it. Waits for nothing, so it may be called while garbage is collected.
        """
        if self.rank != 0:
            raise ConfigError(f"{self._who} cannot unshare {tag!r}: only rank 0 can")
        if os.getpid() == self._owner:
            self._link.tell({"op": "unshare", "tag": tag, "generation": generation})

    def gather(self, label: str, value: Any, timeout: float | None = None) -> list[Any]:
        """Every rank's `value` (JSON, at most 64 KiB), by rank, once all are here.

        `timeout` in seconds; None: the group's. One meeting at a time: StateError on a rank that starts a
        second one. AgreementError on every rank if the labels differ, PeerDied or PeerClosed as soon as a
        rank has ended, JoinTimeout naming who has not come.
        """
        reply, _ = self._call({"op": "gather", "label": label, "value": value}, timeout, f"all at {label!r}")
        return list(reply["values"])

    def barrier(self, label: str, timeout: float | None = None) -> None:
        """Returns when every rank is here. Errors as for `gather`."""
        self.gather(label, None, timeout)

    @property
    def peers(self) -> dict[int, int]:
        """Process ids by rank: of all connected ranks on rank 0, of rank 0 and this one on the others."""
        self._refuse_after_fork()
        if isinstance(self._link, RemoteLink):
            return {self.rank: self._owner} | ({0: self._link.pid} if self._link.over is None else {})
        return {rank: peer.pid for rank, peer in sorted(self._hub.seats.copy().items())}

    @property
    def refusals(self) -> list[Refusal]:
        """On rank 0, the last 100 refused processes; empty on the others."""
        return list(self._hub.refusals)

    def on_peer_lost(self, callback: Callable[[int, int], None]) -> None:
        """Call `callback(rank, pid)` for each peer that ends without closing, earlier ones included.

        Rank 0 sees all ranks, the others see rank 0. The calls come from the group's own thread.
        """
        self.on_loss(_Plain(callback))

    def off_peer_lost(self, callback: Callable[[int, int], None]) -> None:
        """Call it no more; nothing happens if it never was registered."""
        self._losses.forget(_Plain(callback))

    def on_loss(self, callback: Lost) -> None:
        """As `on_peer_lost`, for who must tell processes of one number apart: the process comes whole."""
        self._refuse_after_fork()
        self._losses.listen(callback)

    def off_loss(self, callback: Lost) -> None:
        """Call it no more."""
        self._losses.forget(callback)

    @property
    def rank_0(self) -> rv.Identity:
        """The process that is rank 0."""
        return self._link.server if isinstance(self._link, RemoteLink) else rv.Identity.own()

    def close(self) -> None:
        """Say goodbye and let go of sockets and thread. Idempotent, from any thread, never raises.

        Shared memory stays with its callers.
        """
        _close(self._links, self._owner)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} rank {self.rank} of {self.tp}>"


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise ConfigError(f"timeout is {timeout}, more than 0 seconds are needed (None: no limit)")
    return timeout
