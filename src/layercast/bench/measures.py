"""The measurements: each gives lines of a figure, what limits it, and their ratio."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import multiprocessing
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layercast import machine
from layercast.bench import ranks
from layercast.bench.overlap import overlap
from layercast.bench.ranks import Load
from layercast.checkpoint import write_demo_checkpoint
from layercast.geometry import SHAPES
from layercast.group import Group
from layercast.launch import launch

MODEL = SHAPES["glm-5-next"]
_CHUNK = 8 << 20
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Line:
    """One figure. `limit`: what it is held against, in the same unit, and its name; `better`: "more" or "less"."""

    measure: str
    case: str
    value: float
    unit: str
    limit: float | None = None
    against: str = ""
    better: str = "more"
    detail: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The figure over its limit."""
        return None if not self.limit else self.value / self.limit


@dataclasses.dataclass
class Bench:
    """Settings, and what later measurements are held against."""

    tp: Sequence[int] = (1, 2, 4)
    quick: bool = False
    memcpy: dict[int, float] = dataclasses.field(default_factory=dict)
    lines: list[Line] = dataclasses.field(default_factory=list)

    def scaled(self, full: int, quick: int) -> int:
        """Rounds or experts."""
        return quick if self.quick else full


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; the nearest one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def memcpy(bench: Bench) -> Iterator[Line]:
    """The C library's memcpy, each thread with buffers of its own that no cache holds."""
    size = bench.scaled(1 << 30, 256 << 20)
    for threads in (1, 2):
        pairs = [(np.ones(size, np.uint8), np.ones(size, np.uint8)) for _ in range(threads)]
        rates = []

        def copy(to: int, source: int) -> None:
            for at in range(0, size, _CHUNK):
                ctypes.memmove(to + at, source + at, _CHUNK)

        for _ in range(5):
            workers = [threading.Thread(target=copy, args=(d.ctypes.data, s.ctypes.data)) for d, s in pairs]
            start = time.monotonic()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            rates.append(threads * size / (time.monotonic() - start) / 1e9)
        bench.memcpy[threads] = statistics.median(rates)
        yield Line("memcpy", f"{threads} thread{'s' if threads > 1 else ''}", bench.memcpy[threads], "GB/s")


def seconds(tp: int, load: Load) -> float:
    """Of a layer, median; it lasts from the first rank's start to the last one's end."""
    return _median(launch(ranks.layers, tp, args=(load,)))


def _median(times: list[list[tuple[float, float]]]) -> float:
    spans = [max(end for _, end in layer) - min(start for start, _ in layer) for layer in zip(*times, strict=True)]
    return float(statistics.median(spans))


def rate(tp: int, load: Load) -> float:
    """GB/s to all ranks together."""
    return load.nbytes * tp / seconds(tp, load) / 1e9


def _model(bench: Bench, tp: int, **more: Any) -> Load:
    return Load(tuple(MODEL.layout(tp).sizes), bench.scaled(64, 16), layers=bench.scaled(5, 3), **more)


def _two_threads(bench: Bench) -> dict[str, Any]:
    return {"limit": bench.memcpy.get(2), "against": "memcpy x 2"}


def staged(bench: Bench) -> Iterator[Line]:
    """glm-5-next's experts through the slots to the host device, with the defaults."""
    for tp in bench.tp:
        yield Line("staged", f"tp {tp}", rate(tp, _model(bench, tp)), "GB/s", **_two_threads(bench))


def direct(bench: Bench) -> Iterator[Line]:
    """The same straight from every rank's arena."""
    for tp in bench.tp:
        yield Line("direct", f"tp {tp}", rate(tp, _model(bench, tp, writer="arena")), "GB/s", **_two_threads(bench))


def link(bench: Bench) -> Iterator[Line]:
    """A simulated bus per rank that moves no bytes: what of its bandwidth arrives."""
    for gbps, mib in ((25, 3), (55, 1)):
        for writer in ("free", "arena"):
            for tp in bench.tp:
                experts = bench.scaled(1024, 256) // mib
                load = Load((mib * _MIB,), experts, 3, writer, f"link:{gbps}GB/s,move=no")
                yield Line(
                    f"link {gbps} GB/s",
                    f"{mib} MiB, {'direct' if writer == 'arena' else 'staged'}, tp {tp}",
                    rate(tp, load) / tp,
                    "GB/s/rank",
                    gbps,
                    "the bus",
                )


def checkpoint(bench: Bench) -> Iterator[Line]:
    """A block-FP8 checkpoint of one layer, in the page cache, against the memory writer with the same experts."""
    experts = bench.scaled(24, 8)
    with tempfile.TemporaryDirectory(prefix="layercast-bench-") as folder:
        path = Path(folder) / "model"
        hidden, intermediate = MODEL.hidden, MODEL.intermediate
        write_demo_checkpoint(
            path, layers=1, experts=experts, shards=1, vocab=256, hidden=hidden, intermediate=intermediate
        )
        for tp in bench.tp:
            load = Load(tuple(MODEL.layout(tp).sizes), experts, layers=bench.scaled(9, 3))
            memory = rate(tp, load)
            times = launch(ranks.checkpoint_layers, tp, args=(path, load.layers))
            value = load.nbytes * tp / _median(times) / 1e9
            yield Line("checkpoint", f"tp {tp}", value, "GB/s", memory, "memory writer")


def _handoff(bench: Bench, tp: int, **options: Any) -> float:
    experts = bench.scaled(20000, 4000)
    return seconds(tp, Load(ranks.TINY, experts, options=options)) / experts * 1e6


def handoff(bench: Bench) -> Iterator[Line]:
    """Tiny experts: as they come with the defaults, where many share a piece, and one to a piece."""
    for tp in bench.tp:
        yield Line("handoff", f"defaults, tp {tp}", _handoff(bench, tp), "us/expert", better="less")
    for tp in bench.tp:
        value = _handoff(bench, tp, piece_bytes=sum(ranks.TINY), slots=2)
        yield Line("handoff", f"one a piece, tp {tp}", value, "us/expert", better="less")


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other work on the machine."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def beside(bench: Bench) -> Iterator[Line]:
    """Handoff with two busy processes beside it."""
    for tp in bench.tp:
        with busy(2):
            yield Line("beside 2 busy", f"defaults, tp {tp}", _handoff(bench, tp), "us/expert", better="less")


def latency(bench: Bench) -> Iterator[Line]:
    """Join to the end of wait, one tiny expert, on the slowest rank."""
    for tp in bench.tp:
        each = launch(ranks.one_expert, tp, args=(bench.scaled(2000, 300),))
        slowest = [max(layer) * 1e6 for layer in zip(*each, strict=True)]
        p50, p99 = percentile(slowest, 0.5), percentile(slowest, 0.99)
        yield Line("latency", f"tp {tp}", p50, "us p50", better="less", detail={"p99_us": p99})


def python_writer(bench: Bench) -> Iterator[Line]:
    """What a Python callable costs over a C function, per expert of a piece of its own."""
    experts = bench.scaled(20000, 4000)
    options = {"piece_bytes": sum(ranks.TINY)}
    for tp in bench.tp:
        values = [
            seconds(tp, Load(ranks.TINY, experts, writer=writer, options=options)) for writer in ("free", "python")
        ]
        added = (values[1] - values[0]) / experts * 1e6
        yield Line("Python writer", f"tp {tp}", added, "us/expert", better="less")


def idle(bench: Bench) -> Iterator[Line]:
    """A rank between layers, its own threads included."""
    cpu, switches = zip(*launch(ranks.idle, 2, args=(bench.scaled(5, 2),)), strict=True)
    yield Line("idle", "a rank", max(cpu), "CPU s/s", 0.0005, "target", "less", {"switches_per_s": max(switches)})


def blocked(bench: Bench) -> Iterator[Line]:
    """A rank that waits for a writer which takes 20 ms per expert."""
    rates = launch(ranks.blocked, 2, args=(bench.scaled(4, 2),))
    cpu, switches = rates[1]
    yield Line("blocked", "a rank", cpu, "CPU s/s", 0.01, "target", "less", {"switches_per_s": switches})


def _failures(name: str, run: Callable[..., Any], tp: int, rounds: int) -> Iterator[Line]:
    each: list[ranks.Failures] = launch(run, tp, args=(rounds,))
    heard, works = [], []
    for number in range(rounds):
        began = max(rank.began[number] for rank in each)
        last = max(rank.heard[number] for rank in each if len(rank.heard) == rounds)
        heard.append((last - began) * 1e3)
        works.append((max(rank.works[number] for rank in each) - last) * 1e3)
    for case, values in ((f"heard by all, tp {tp}", heard), (f"next layer, tp {tp}", works)):
        p99 = percentile(values, 0.99)
        yield Line(name, case, statistics.median(values), "ms p50", better="less", detail={"p99_ms": p99})


def poison(bench: Bench) -> Iterator[Line]:
    """From the writer's exception until the last rank raises; then recover, and a layer that works."""
    for tp in bench.tp:
        yield from _failures("poison", ranks.poison, tp, bench.scaled(200, 20))


def cancel(bench: Bench) -> Iterator[Line]:
    """From cancel on one rank until the last one raises; then the next layer."""
    for tp in bench.tp:
        yield from _failures("cancel", ranks.cancel, tp, bench.scaled(50, 10))


def _dying(rank: int, tp: int, name: str, victim: int, inbox: Any, outbox: Any) -> None:
    logging.getLogger("layercast").setLevel(logging.ERROR)  # the deaths are what is measured
    with Group(name, rank, tp) as group:
        ranks.die(group, victim, inbox, outbox)


def death(bench: Bench) -> Iterator[Line]:
    """From SIGKILL until the other ranks raise: in wait, and inside the writer's call."""
    context, tp = multiprocessing.get_context("spawn"), 3
    for victim in (0, tp - 1):
        values = []
        for _ in range(bench.scaled(50, 5)):
            name = f"bench-{os.getpid()}-{secrets.token_hex(4)}"
            pipes = [(context.Pipe(duplex=False), context.Pipe(duplex=False)) for _ in range(tp)]
            children = [
                context.Process(target=_dying, args=(rank, tp, name, victim, pipes[rank][0][0], pipes[rank][1][1]))
                for rank in range(tp)
            ]
            for child in children:
                child.start()
            pipes[victim][1][0].recv()
            time.sleep(0.05)  # into its sleep
            start = time.monotonic()
            os.kill(children[victim].pid or 0, signal.SIGKILL)
            for rank in set(range(tp)) - {victim}:
                when, who, pid = pipes[rank][1][0].recv()
                assert (who, pid) == (victim, children[victim].pid), (who, pid)
                values.append((when - start) * 1e3)
            for rank in set(range(tp)) - {victim}:
                pipes[rank][0][1].send("go")
            for child in children:
                child.join()
                child.close()
            for pair in pipes:
                for end in (*pair[0], *pair[1]):
                    end.close()
        case = f"rank {victim} of {tp}"
        yield Line("death", case, statistics.median(values), "ms p50", 20, "target", "less", {"max_ms": max(values)})


def verify(bench: Bench) -> Iterator[Line]:
    """What checking on arrival costs, and the timeline: of the staged throughput, layer by layer in turns."""
    cases: dict[str, dict[str, Any]] = {
        "off": {},
        "off again": {},
        "timeline on": {"timeline_events": 1 << 16},
        "verify sample": {"verify": "sample"},
        "verify full": {"verify": "full"},
    }
    for tp in bench.tp:
        sizes, rounds = tuple(MODEL.layout(tp).sizes), bench.scaled(41, 7)
        loads = [Load(sizes, 16, layers=rounds, options=options) for options in cases.values()]
        by_rank = launch(ranks.in_turns, tp, args=(loads,))
        moved = loads[0].nbytes * tp / 1e9
        rates = [moved / _median([times[number] for times in by_rank]) for number in range(len(loads))]
        for case, value in zip(cases, rates, strict=True):
            held: dict[str, Any] = {} if case == "off" else {"limit": rates[0], "against": "off"}
            yield Line("checks", f"{case}, tp {tp}", value, "GB/s", **held)
        yield _timeline(bench, tp, rates[0])


def _timeline(bench: Bench, tp: int, gbps: float) -> Line:
    """What the timeline adds to a piece, seen where pieces are tiny and the handoff is all that costs time.

    Held against 2 % of the time that a piece of the default size takes at `gbps`: two runs of whole layers differ by
    more than that by themselves.
    """
    experts, tiny = bench.scaled(20000, 4000), sum(ranks.TINY)
    loads = [
        Load(ranks.TINY, experts, bench.scaled(21, 7), options={"piece_bytes": tiny, "timeline_events": events})
        for events in (0, 1 << 16)
    ]
    by_rank = launch(ranks.in_turns, tp, args=(loads,))
    off, on = (_median([times[number] for times in by_rank]) / experts * 1e6 for number in range(2))
    piece_us = machine.default_piece_bytes(tp, machine.default_slots(True)) * tp / gbps / 1e3
    detail = {"without_us": off, "piece_us": piece_us}
    return Line("checks", f"timeline, a piece, tp {tp}", on - off, "us", 0.02 * piece_us, "2 % of it", "less", detail)


def sweeps(bench: Bench) -> Iterator[Line]:
    """Staged throughput against ranks, slots and piece sizes; handoff against experts."""
    for tp in (1, 2, 3, 4, 6, 8):
        if MODEL.intermediate % (tp * 128) == 0:
            yield Line("by ranks", str(tp), rate(tp, _model(bench, tp)), "GB/s", **_two_threads(bench))
    for slots in (1, 2, 3, 4, 8, 16):
        value = rate(2, _model(bench, 2, options={"slots": slots}))
        yield Line("by slots", str(slots), value, "GB/s", **_two_threads(bench))
    for kib in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        value = rate(2, _model(bench, 2, options={"piece_bytes": kib << 10}))
        yield Line("by piece size", f"{kib} KiB", value, "GB/s", **_two_threads(bench))
    for experts in (1, 8, 64, 512):
        value = seconds(2, Load(ranks.TINY, experts, layers=50)) * 1e6
        yield Line("by experts", str(experts), value, "us/layer", better="less")


MEASURES: Mapping[str, Callable[[Bench], Iterator[Line]]] = {
    "memcpy": memcpy,
    "staged": staged,
    "direct": direct,
    "link": link,
    "checkpoint": checkpoint,
    "handoff": handoff,
    "beside": beside,
    "latency": latency,
    "python": python_writer,
    "idle": idle,
    "blocked": blocked,
    "poison": poison,
    "cancel": cancel,
    "death": death,
    "checks": verify,
    "overlap": overlap,
    "sweeps": sweeps,
}
