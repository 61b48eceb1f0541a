"""What the ranks of a measurement do, each in a process of its own. Times are CLOCK_MONOTONIC, in seconds."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from layercast.checkpoint import Checkpoint
from layercast.errors import Cancelled, PeerDied, WriterError
from layercast.group import Group
from layercast.sources import CheckpointSource
from layercast.transport import Transport
from layercast.writers import ExpertWriter, Writer, function_writer, memory_writer

#: Four kinds of 64 bytes: all that is left is the handoff.
TINY = (64, 64, 64, 64)


@dataclasses.dataclass(frozen=True)
class Load:
    """Layers to load: geometry per expert and rank, who writes, and the transport's options."""

    kind_bytes: tuple[int, ...]
    experts: int
    layers: int = 5
    writer: str = "memory"  # memory, free (fills nothing), python (fills nothing), arena
    device: str = "host"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of a layer on one rank."""
        return sum(self.kind_bytes) * self.experts


class _Arena:
    """Enough of an arena for `Transport.use_arena`: one layer of any bytes."""

    def __init__(self, group: Group, load: Load) -> None:
        self.rank, self.tp, self.kind_bytes = group.rank, group.tp, load.kind_bytes
        self.layers = (0,)
        self._kinds = [np.ones(load.experts * nbytes, np.uint8) for nbytes in load.kind_bytes]

    def addresses(self, layer: int) -> list[int]:
        return [kind.ctypes.data for kind in self._kinds]


def free_writer() -> Writer:
    """Fills nothing, at no cost."""
    # abs(user) with user = 0: returns 0, and ignores what else it is given.
    return function_writer(ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0)


def _writer(group: Group, load: Load) -> Writer | ExpertWriter | None:
    if group.rank != 0 or load.writer == "arena":
        return None
    if load.writer == "python":
        return lambda expert, views: None
    if load.writer == "free":
        return free_writer()
    source = np.ones(load.nbytes * group.tp, np.uint8)
    return memory_writer(source, load.kind_bytes, group.tp, load.experts)


def _open(group: Group, load: Load) -> Transport:
    transport = Transport(group, load.kind_bytes, num_experts=load.experts, device=load.device, **load.options)
    if load.writer == "arena":
        transport.use_arena(_Arena(group, load))  # type: ignore[arg-type]
    return transport


def layers(group: Group, load: Load) -> list[tuple[float, float]]:
    """(start, end) of each layer on this rank; all ranks start together, the first layer is not counted."""
    return in_turns(group, [load])[0]


def in_turns(group: Group, loads: list[Load]) -> list[list[tuple[float, float]]]:
    """(start, end) of each layer of each load. All are open at once and a layer of each follows one of the other,
    so the machine's moods meet them alike; they differ in options only, and the first layers are not counted."""
    writer = _writer(group, loads[0])
    out: list[list[tuple[float, float]]] = [[] for _ in loads]
    with contextlib.ExitStack() as stack:
        transports = [stack.enter_context(_open(group, load)) for load in loads]
        for epoch in range(1, loads[0].layers + 2):
            for number, (load, transport) in enumerate(zip(loads, transports, strict=True)):
                group.barrier(f"layer {epoch} of {number}")
                start = time.monotonic()
                transport.load(epoch, 0, load.experts, writer)
                out[number].append((start, time.monotonic()))
    return [times[1:] for times in out]


def checkpoint_layers(group: Group, path: Path, layers: int) -> list[tuple[float, float]]:
    """As `layers`, for the first layer of a checkpoint, straight from its files."""
    source = CheckpointSource(Checkpoint.open(path))
    layer = source.layers[0]
    writer = source.writer(layer, group.tp) if group.rank == 0 else None
    out = []
    with Transport(group, source.layout(group.tp), num_experts=source.num_experts) as transport:
        for epoch in range(1, layers + 2):
            group.barrier(f"layer {epoch}")
            start = time.monotonic()
            transport.load(epoch, layer, source.experts(layer), writer)
            out.append((start, time.monotonic()))
    return out[1:]


def one_expert(group: Group, rounds: int) -> list[float]:
    """Seconds from join to the end of wait, one tiny expert, layer after layer without a pause."""
    load = Load(TINY, 1)
    writer = _writer(group, load)
    out = []
    with _open(group, load) as transport:
        for epoch in range(1, rounds + 100):
            start = time.monotonic()
            transport.load(epoch, 0, 1, writer)
            out.append(time.monotonic() - start)
    return out[99:]


def _usage() -> tuple[float, float, int]:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), use.ru_utime + use.ru_stime, use.ru_nvcsw + use.ru_nivcsw


def _rates(before: tuple[float, float, int]) -> tuple[float, float]:
    (t0, c0, s0), (t1, c1, s1) = before, _usage()
    return (c1 - c0) / (t1 - t0), (s1 - s0) / (t1 - t0)


def idle(group: Group, seconds: float) -> tuple[float, float]:
    """CPU seconds and context switches per second of this rank between layers."""
    load = Load(TINY, 1)
    with _open(group, load) as transport:
        transport.load(1, 0, 1, _writer(group, load))
        group.barrier("idle")
        before = _usage()
        time.sleep(seconds)
        rates = _rates(before)
        group.barrier("end")
    return rates


def blocked(group: Group, seconds: float) -> tuple[float, float]:
    """The same while rank 0's writer takes 20 ms per expert: whoever is not rank 0 waits for it."""
    experts = max(1, round(seconds / 0.02))
    load = Load(TINY, experts, options={"piece_bytes": 1})
    with _open(group, load) as transport:
        group.barrier("start")
        before = _usage()
        transport.load(1, 0, experts, (lambda expert, views: time.sleep(0.02)) if group.rank == 0 else None)
        return _rates(before)


@dataclasses.dataclass
class Failures:
    """Per round: when it began (on the rank that began it, else 0), was heard, and the group worked again."""

    began: list[float]
    heard: list[float]
    works: list[float]


def poison(group: Group, rounds: int) -> Failures:
    """Rank 0's writer raises; every rank hears of it, recovers, and loads a layer."""
    out = Failures([], [], [])
    experts = 8
    load = Load(TINY, experts, options={"piece_bytes": 1, "slots": 2})
    began = 0.0

    def fail(expert: int, views: object) -> None:
        nonlocal began
        if expert == 5:
            began = time.monotonic()
            raise ValueError("as it was told to")

    with _open(group, load) as transport:
        for number in range(rounds):
            group.barrier(f"round {number}")
            began = 0.0
            try:
                transport.load(transport.last_epoch_joined + 1, 0, experts, fail)
            except WriterError:
                out.heard.append(time.monotonic())
            out.began.append(began)
            transport.recover()
            transport.load(1, 0, experts, lambda expert, views: None)
            out.works.append(time.monotonic())
    return out


def cancel(group: Group, rounds: int) -> Failures:
    """The last rank gives a layer up in its middle; the next layer works at once."""
    out = Failures([], [], [])
    load = Load((1 << 20,), 512, writer="memory", options={"piece_bytes": 1 << 18})
    small = Load((1 << 20,), 8)
    writer, last = _writer(group, small), group.tp - 1
    with _open(group, load) as transport:
        epoch = 0
        for number in range(rounds):
            group.barrier(f"round {number}")
            epoch += 1
            began = [0.0]

            def give_up(now: int, began: list[float]) -> None:
                time.sleep(0.01)
                began[0] = time.monotonic()
                transport.cancel(now)

            thread = threading.Thread(target=give_up, args=(epoch, began))
            if group.rank == last:
                thread.start()
            try:
                transport.load(epoch, 0, load.experts, writer)
            except Cancelled:
                out.heard.append(time.monotonic())
            if group.rank == last:
                thread.join()
            out.began.append(began[0])
            epoch += 1
            transport.load(epoch, 0, 1, writer)
            out.works.append(time.monotonic())
    return out


def die(group: Group, victim: int, inbox: Any, outbox: Any) -> None:
    """Waits in the middle of a layer for the victim's end; (when heard, the error) goes to `outbox`."""
    load = Load(TINY, 2, options={"piece_bytes": 1, "slots": 1})
    with _open(group, load) as transport:
        group.barrier("ready")
        if group.rank == victim and victim != 0:
            outbox.send("ready")
            time.sleep(600)

        def stuck(expert: int, views: object) -> None:
            if victim == 0:
                outbox.send("ready")
            time.sleep(600 if victim == 0 else 0)

        try:
            transport.load(1, 0, 2, stuck)
        except PeerDied as error:
            outbox.send((time.monotonic(), error.rank, error.pid))
            inbox.recv()
