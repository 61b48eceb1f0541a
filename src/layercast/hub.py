"""Rank 0's knowledge of a group: who sits where, what is shared, who waits for whom."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from layercast import rendezvous as rv
from layercast.errors import (
    AgreementError,
    ConfigError,
    LayercastError,
    PeerClosed,
    PeerDied,
    ResourceError,
    StateError,
    Superseded,
)
from layercast.server import Peer

log = logging.getLogger("layercast")

_ABSENT = "(absent)"
_REFUSALS_KEPT = 100


@dataclass(frozen=True)
class Refusal:
    """A process that rank 0 refused, and why."""

    rank: int
    pid: int
    message: str


#: rank, and the process that sat there.
Lost: TypeAlias = "Callable[[int, rv.Identity], None]"


class Losses:
    """Peers that ended without a goodbye, and who wants to hear of them: each callback once per loss."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: dict[int, rv.Identity] = {}
        self._callbacks: list[Lost] = []

    def listen(self, callback: Lost) -> None:
        with self._lock:
            self._callbacks.append(callback)
            earlier = list(self._lost.items())
        for rank, who in earlier:
            callback(rank, who)

    def forget(self, callback: Lost) -> None:
        with self._lock:
            self._callbacks = [other for other in self._callbacks if other is not callback and other != callback]

    def report(self, rank: int, who: rv.Identity) -> None:
        with self._lock:
            self._lost[rank] = who
            callbacks = list(self._callbacks)
        for callback in callbacks:
            try:
                callback(rank, who)
            except Exception:
                log.exception("on_peer_lost callback for rank %d (pid %d)", rank, who.pid)

    @property
    def known(self) -> dict[int, rv.Identity]:
        """By rank, those that ended and were not replaced."""
        with self._lock:
            return dict(self._lost)

    def replaced(self, rank: int) -> None:
        with self._lock:
            self._lost.pop(rank, None)


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


@dataclass
class _Share:
    fd: int
    asked: dict[str, Any]  # nbytes, and what else all ranks must agree about
    generation: int  # grows when the same tag is shared anew


@dataclass
class _Parked:
    """Asks for memory that rank 0 has not shared yet."""

    peer: Peer
    call: int
    tag: str
    asked: dict[str, Any]
    newer_than: int


@dataclass
class _Round:
    """One meeting of all ranks: who is there, with what, and which call waits for the others."""

    label: str
    values: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, tuple[Peer, int]] = field(default_factory=dict)
    failed: dict[str, Any] | None = None
    told: set[int] = field(default_factory=set)  # ranks that know that it failed


class Hub:
    """The state of a group. Only the server's thread changes it."""

    def __init__(self, name: str, tp: int, losses: Losses) -> None:
        self.name = name
        self.tp = tp
        self.seats: dict[int, Peer] = {}
        self.refusals: deque[Refusal] = deque(maxlen=_REFUSALS_KEPT)
        self.on_end: Callable[[], None] = lambda: None
        self._losses = losses
        self._left: dict[int, dict[str, Any]] = {}  # the failure that meeting this rank gives
        self._shares: dict[str, _Share] = {}
        self._withdrawn: set[str] = set()  # taken back, or given up before it was shared
        self._parked: list[_Parked] = []
        self._round: _Round | None = None

    def received(self, peer: Peer, message: dict[str, Any]) -> None:
        op, number = rv.field(message, "op", str), rv.field(message, "id", int)
        if op == "hello" and peer.rank < 0:
            self._hello(peer, number, message)
        elif op in ("register", "unshare") and peer.rank == 0:
            self._register(peer, number, message)
        elif op == "share" and peer.rank >= 0:
            self._share(peer, number, message)
        elif op == "gather" and peer.rank >= 0:
            self._gather(peer, number, rv.field(message, "label", str), message.get("value"))
        elif op == "who" and peer.rank >= 0:
            peer.send({"id": number, **self._whom(peer, rv.field(message, "about", int))})
        elif op == "forget" and peer.rank >= 0:
            self._forget(peer, rv.field(message, "about", int))
        else:
            raise rv.Fault(f"{op!r:.80} as rank {peer.rank}")

    def gone(self, peer: Peer, goodbye: bool) -> None:
        rank = peer.rank
        if rank < 0 or self.seats.get(rank) is not peer:
            return
        del self.seats[rank]
        self._parked = [entry for entry in self._parked if entry.peer is not peer]
        how, cls = ("closed", PeerClosed) if goodbye else ("died", PeerDied)
        self._left[rank] = rv.failure(cls, f"rank {rank} (pid {peer.pid}) of group {self.name!r} {how}", rank, peer.pid)
        if self._round is not None and self._round.failed is None:
            self._fail(self._round, self._left[rank])
        if not goodbye:
            log.warning("rank %d (pid %d) of group %r died", rank, peer.pid, self.name)
            assert peer.identity is not None
            self._losses.report(rank, peer.identity)

    def last_words(self) -> dict[str, Any]:
        """Rank 0 often closes because of another's end: then that is what the others must hear."""
        return next(iter(self._left.values()), {})

    def ended(self) -> None:
        self.drop_shares()
        self.on_end()

    def drop_shares(self) -> None:
        while self._shares:
            _, share = self._shares.popitem()
            os.close(share.fd)

    # Ranks come.

    def _hello(self, peer: Peer, number: int, message: dict[str, Any]) -> None:
        protocol = rv.field(message, "protocol", int)
        rank, tp = -1, self.tp
        if protocol == rv.PROTOCOL:
            rank, tp = rv.field(message, "rank", int), rv.field(message, "tp", int)
        if protocol == rv.PROTOCOL:
            peer.identity = rv.Identity.said(message).seen_as(peer.pid)
        peer.pid = peer.identity.pid if peer.identity is not None else peer.pid
        mine = f"rank 0 (pid {os.getpid()}) of group {self.name!r}"
        if protocol != rv.PROTOCOL:
            text = f"pid {peer.pid} speaks protocol {protocol}, {mine} speaks {rv.PROTOCOL}"
            self._refuse(peer, number, rank, AgreementError, f"{text}: use one version of layercast")
        elif tp != self.tp:
            text = f"rank {rank} was started with tp={tp}, {mine} has tp={self.tp}"
            self._refuse(peer, number, rank, AgreementError, text)
        elif not 0 <= rank < self.tp:
            text = f"there is no rank {rank} in group {self.name!r} with tp={self.tp}"
            self._refuse(peer, number, rank, ConfigError, text)
        elif rank in self.seats and self.seats[rank].alive() and not (rank > 0 and message.get("take_over")):
            holder = self.seats[rank].pid
            text = f"rank {rank} of group {self.name!r} is taken by pid {holder}; this is pid {peer.pid}"
            self._refuse(peer, number, rank, ConfigError, text, holder)
        else:
            if rank in self.seats:
                text = f"the place of rank {rank} of group {self.name!r} was taken over by pid {peer.pid}"
                log.warning("%s from pid %d", text, self.seats[rank].pid)
                self.seats[rank].evict({"op": "evicted", **rv.failure(Superseded, text, rank, peer.pid)})
            left = self._left.get(rank)
            self._seat(peer, rank)
            me = vars(rv.Identity.own())
            peer.send({"id": number, "replaces": left["pid"] if left is not None else 0, **me})

    def _seat(self, peer: Peer, rank: int) -> None:
        peer.rank = rank
        self.seats[rank] = peer
        self._left.pop(rank, None)
        self._losses.replaced(rank)
        if self._round is not None and self._round.failed is not None:
            self._round.told.add(rank)  # a newcomer has nothing to do with what failed before it

    def _refuse(
        self, peer: Peer, number: int, rank: int, cls: type[LayercastError], text: str, holder: int = 0
    ) -> None:
        log.warning("refused: %s", text)
        self.refusals.append(Refusal(rank, peer.pid, text))
        peer.send({"id": number, **rv.failure(cls, text, rank, holder or peer.pid)})

    # Memory is shared.

    def _register(self, peer: Peer, number: int, message: dict[str, Any]) -> None:
        """Rank 0 shares memory under a tag, or takes the tag back."""
        tag = rv.field(message, "tag", str)
        generation = rv.field(message, "generation", int)
        if message["op"] == "unshare":
            share = self._shares.get(tag)
            if generation and (share is None or generation != share.generation):
                return  # shared anew meanwhile
            self._withdrawn.add(tag)
            if share is not None:
                del self._shares[tag]
                os.close(share.fd)
        else:
            self._withdrawn.discard(tag)
            if (old := self._shares.get(tag)) is not None:
                os.close(old.fd)
            self._shares[tag] = _Share(rv.field(message, "fd", int), rv.field(message, "asked", dict), generation)
        peer.send({"id": number})
        parked, self._parked = self._parked, []
        for entry in parked:
            self._give(entry)

    def _share(self, peer: Peer, number: int, message: dict[str, Any]) -> None:
        tag, asked = rv.field(message, "tag", str), rv.field(message, "asked", dict)
        self._give(_Parked(peer, number, tag, asked, rv.field(message, "newer_than", int)))

    def _give(self, entry: _Parked) -> None:
        peer, number, tag, asked = entry.peer, entry.call, entry.tag, entry.asked
        share = self._shares.get(tag)
        if share is None and tag in self._withdrawn:
            text = f"rank 0 (pid {os.getpid()}) of group {self.name!r} has closed {tag!r} already"
            peer.send({"id": number, **rv.failure(PeerClosed, text, 0, os.getpid())})
            return
        if share is None or share.generation <= entry.newer_than:
            self._parked.append(entry)
            return
        differing = [
            f"{key} is {theirs!r} on rank {peer.rank}, {mine!r} on rank 0"
            for key in {**share.asked, **asked}
            if (theirs := asked.get(key, _ABSENT)) != (mine := share.asked.get(key, _ABSENT))
        ]
        if differing:
            who = f"rank {peer.rank} (pid {peer.pid}) and rank 0 (pid {os.getpid()})"
            text = f"{who} of group {self.name!r} disagree about {tag!r}: {'; '.join(differing)}"
            self._refuse(peer, number, peer.rank, AgreementError, text)
            return
        try:
            peer.send({"id": number, "generation": share.generation}, share.fd)
        except OSError as error:
            text = f"rank 0 (pid {os.getpid()}) cannot hand out {tag!r}: {error.strerror}"
            peer.send({"id": number, **rv.failure(ResourceError, text, 0, os.getpid())})

    # Ranks meet.

    def _gather(self, peer: Peer, number: int, label: str, value: Any) -> None:
        meeting = self._round
        if meeting is not None and meeting.failed is not None and peer.rank not in meeting.told:
            meeting.told.add(peer.rank)  # late for a meeting that has failed
            peer.send({"id": number, **meeting.failed})
            return
        if meeting is None or meeting.failed is not None:
            meeting = self._round = _Round(label)
        if peer.rank in meeting.waiting:
            text = f"rank {peer.rank} is at {meeting.label!r} already: one meeting at a time"
            peer.send({"id": number, **rv.failure(StateError, text, peer.rank, peer.pid)})
            return
        others = _ranks(meeting.waiting)
        meeting.waiting[peer.rank] = peer, number
        meeting.values[peer.rank] = value
        if self._left:
            self._fail(meeting, next(iter(self._left.values())))
        elif label != meeting.label:
            text = f"rank {peer.rank} of group {self.name!r} is at {label!r}, {others} at {meeting.label!r}"
            self._fail(meeting, rv.failure(AgreementError, text, peer.rank, peer.pid))
        elif len(meeting.values) == self.tp:
            self._round = None
            values = [meeting.values[rank] for rank in range(self.tp)]
            for other, call in meeting.waiting.values():
                other.send({"id": call, "values": values})

    def _fail(self, meeting: _Round, cause: dict[str, Any]) -> None:
        """Everybody who waits hears of it now, the others when they come."""
        text = f"{cause['text']} ({_ranks(meeting.waiting)} waited at {meeting.label!r})"
        meeting.failed = {**cause, "text": text}
        meeting.told.update(meeting.waiting)
        waiting, meeting.waiting, meeting.values = meeting.waiting, {}, {}
        for peer, number in waiting.values():
            peer.send({"id": number, **meeting.failed})

    def _whom(self, peer: Peer, number: int) -> dict[str, Any]:
        """Who is missing for call `number`, in words."""
        for entry in self._parked:
            if entry.peer is peer and entry.call == number:
                what = f"share {entry.tag!r}" if entry.newer_than == 0 else f"recover {entry.tag!r}"
                return {"whom": f"rank 0 (pid {os.getpid()}) to {what}", "rank": 0}
        meeting = self._round
        if meeting is None or meeting.waiting.get(peer.rank) != (peer, number):
            return {"whom": "", "rank": -1}
        missing = [rank for rank in range(self.tp) if rank not in meeting.waiting]
        words = [
            f"rank {rank} ({f'pid {self.seats[rank].pid}' if rank in self.seats else 'not started'})"
            for rank in missing
        ]
        return {"whom": f"{', '.join(words)} at {meeting.label!r}", "rank": missing[0]}

    def _forget(self, peer: Peer, number: int) -> None:
        """The call has timed out or was interrupted."""
        self._parked = [entry for entry in self._parked if (entry.peer, entry.call) != (peer, number)]
        meeting = self._round
        if meeting is not None and meeting.waiting.get(peer.rank) == (peer, number):
            del meeting.waiting[peer.rank], meeting.values[peer.rank]
            if not meeting.waiting:
                self._round = None
