"""One cell of the fault matrix: three ranks, a fault at one step of one of them, and what each rank met."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import mmap
import os
import signal
import struct
import threading
import time
from pathlib import Path

from layercast import Group, Transport, _native
from layercast.errors import Cancelled, LayercastError
from layercast.writers import pattern_writer
from tests.support.fake_cuda import FakeCuda
from tests.support.processes import Child

TP = 3
KINDS = (3000, 40)
EXPERTS = 6
LIMIT_S = 0.5  # of the ranks, for a peer that stands still
BOUND_S = 20.0  # beyond that a rank hangs

#: Action -> number of the native fault.
ACTIONS = {"SIGKILL": 1, "SIGSTOP, SIGCONT": 2, "exception": 3, "Ctrl-C": 4, "close": 5, "cancel": 5}
DEVICE_ACTIONS = ("device error", "device hang")
DEVICES = {"host": "host", "link": "link:1GB/s", "cuda": "cuda"}


@dataclasses.dataclass(frozen=True)
class Cell:
    """`rank`: where it happens."""

    action: str
    step: str
    rank: int
    device: str


@dataclasses.dataclass(frozen=True)
class Met:
    """What a rank met: an exception's name or "done" or "killed", whom it named, and ms since the fault."""

    what: str
    named: int = -1
    ms: float = 0.0
    text: str = ""

    def __str__(self) -> str:
        who = f" (rank {self.named})" if self.named >= 0 else ""
        when = f" {self.ms:.0f} ms" if self.what not in ("done", "killed") else ""
        return f"{self.what}{who}{when}"


def steps(rank: int) -> list[str]:
    """The steps that this rank goes through."""
    points = _native.fault_points()  # type: ignore[attr-defined]
    return [point for point in points if rank == 0 or not point.startswith("producer.")]


def cells() -> list[Cell]:
    """All of them."""
    out = [
        Cell(action, step, rank, device)
        for action in ACTIONS
        for rank in (0, TP - 1)
        for step in steps(rank)
        for device in DEVICES
    ]
    return out + [
        Cell(action, "the 4th copy", rank, device)
        for action in DEVICE_ACTIONS
        for rank in (0, TP - 1)
        for device in DEVICES
        if device != "host"
    ]


def run(cell: Cell, folder: Path) -> list[Met]:
    """What each rank met. Raises AssertionError where one hangs."""
    shared = mmap.mmap(-1, 4096)  # when it happened
    children = [Child(lambda rank=rank: _rank(cell, rank, folder, shared)) for rank in range(TP)]
    out: list[Met] = []
    if cell.action == "SIGSTOP, SIGCONT":
        victim = children[cell.rank]
        deadline = time.monotonic() + BOUND_S
        while victim.state() != "T" and time.monotonic() < deadline:
            time.sleep(0.005)
        others = [child.timed_result(BOUND_S)[1] for rank, child in enumerate(children) if rank != cell.rank]
        victim.signal(signal.SIGCONT)
        others.insert(cell.rank, victim.timed_result(BOUND_S)[1])
        return [met if isinstance(met, Met) else Met("lost", text=repr(met)) for met in others]
    for rank, child in enumerate(children):
        if cell.action == "SIGKILL" and rank == cell.rank:
            child.reap()
            os.close(child.reader)
            out.append(Met("killed"))
            continue
        met = child.timed_result(BOUND_S)[1]
        out.append(met if isinstance(met, Met) else Met("lost", text=repr(met)))
        os.close(child.reader)
    return out


def _fault_time(shared: mmap.mmap) -> float:
    return struct.unpack_from("<Q", shared)[0] / 1e9


def _rank(cell: Cell, rank: int, folder: Path, shared: mmap.mmap) -> Met:
    device: str | _native.Device = DEVICES[cell.device]
    if device == "cuda":
        device = _native.cuda_device(os.environ["LAYERCAST_CUDA_DRIVER"], rank, patience_ms=500)
    if rank == cell.rank and cell.action in DEVICE_ACTIONS:
        if isinstance(device, str):
            device += ",fail=14" if cell.action == "device error" else ",hang=14"
        struct.pack_into("<Q", shared, 0, time.monotonic_ns())
    patience = {"timeout": LIMIT_S, "join_timeout": LIMIT_S}
    logging.getLogger("layercast").setLevel(logging.CRITICAL)  # the table tells it
    with (
        Group("faults", rank, TP, runtime_dir=folder, timeout=BOUND_S) as group,
        Transport(
            group, KINDS, num_experts=EXPERTS, device=device, piece_bytes=2000, slots=2, writer_threads=1, **patience
        ) as transport,
    ):
        group.barrier("there")
        _load(transport, 1)
        group.barrier("armed")
        if rank == cell.rank and cell.device == "cuda" and cell.action in DEVICE_ACTIONS:
            fault = "lost_at" if cell.action == "device error" else "hang_at"
            FakeCuda(Path(os.environ["LAYERCAST_CUDA_DRIVER"])).set(f"{fault}=4")
            struct.pack_into("<Q", shared, 0, time.monotonic_ns())
        if rank == cell.rank and cell.action in ACTIONS:
            time.sleep(0.02)  # rank 0 serves the meeting: the others must have heard that it is over
            _arm(cell, transport, shared)
        try:
            _load(transport, 2)
        except Cancelled as error:
            met = _met(error, shared)
            _load(transport, 3)
            return dataclasses.replace(met, what="Cancelled, next layer right")
        except (LayercastError, KeyboardInterrupt) as error:
            return _met(error, shared)
        return Met("done")


def _met(error: BaseException, shared: mmap.mmap) -> Met:
    ms = (time.monotonic() - _fault_time(shared)) * 1e3
    return Met(type(error).__name__, getattr(error, "rank", -1), ms, str(error))


def _load(transport: Transport, epoch: int) -> None:
    transport.load(epoch, 1, EXPERTS, pattern_writer(epoch))
    wrong, _ = _native.count_wrong_pattern(epoch, 1, transport.rank, EXPERTS, list(KINDS), transport.destinations)
    assert wrong == 0, f"{wrong} experts of epoch {epoch} are wrong on rank {transport.rank}"


def _arm(cell: Cell, transport: Transport, shared: mmap.mmap) -> None:
    reader, writer = os.pipe()

    def act() -> None:
        os.read(reader, 1)
        if cell.action == "close":
            transport.close()
        else:
            transport.cancel(2)

    if ACTIONS[cell.action] == 5:
        threading.Thread(target=act, daemon=True).start()
    address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    nth = 1 if cell.step.startswith(("join", "wait", "producer.before_done")) else 3
    _native.arm_fault(cell.step, nth, ACTIONS[cell.action], writer, address)  # type: ignore[attr-defined]
