"""Acts as a serving framework does around version 2 of the protocol: one client per rank, one process per rank.

It knows nothing of this library but the four names, and touches memory only as such a framework does: four buffers
in shared memory per rank of exactly 2 x expert_nbytes, a control region that rank 0 makes, names unlinked once
everybody has mapped them, one device layer, one worker thread for successors, a fence between use and overwriting.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

KINDS = 4
SLOTS = 2
HANG = 100  # seconds; only a bound for a test that would otherwise never end
STATISTICS = {
    *("epoch", "layer_id", "expert_count", "rank", "writer_ms", "slot_wait_ms", "h2d_ms", "total_ms", "bytes"),
    *("poisoned", "error_code", "error_rank", "error_message"),
}

#: `produce(transport, epoch, layer, expert_count)`: what a rank does between join and wait; rank 0 streams.
Produce = Callable[[Any, int, int, int], object]


class Shared:
    """Named shared memory of exactly `nbytes`, mapped. `unmap` leaves no mapping: a later access ends the process."""

    def __init__(self, name: str, nbytes: int, *, create: bool) -> None:
        self.path = Path("/dev/shm", name)
        fd = os.open(self.path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
        try:
            if create:
                os.ftruncate(fd, nbytes)
            assert os.fstat(fd).st_size == nbytes
            self._map = mmap.mmap(fd, nbytes)
        finally:
            os.close(fd)
        self._anchor: Any = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def unlink(self) -> None:
        self.path.unlink()

    def unmap(self) -> None:
        self._anchor = None
        self._map.close()


class Ranks:
    """What the framework's own process group gives: a barrier, and agreement on whether all are well."""

    def __init__(self, tp: int) -> None:
        context = get_context("fork")
        self.tp = tp
        self._barrier = context.Barrier(tp)
        self._trouble = context.Array(ctypes.c_byte, tp)
        self.prefix = f"layercast-test-{os.getpid()}-{secrets.token_hex(4)}"

    def barrier(self) -> None:
        self._barrier.wait(HANG)

    def all_well(self, rank: int, well: bool) -> bool:
        self._trouble[rank] = not well
        self.barrier()
        result = not any(self._trouble)
        self.barrier()
        return result


@dataclass
class Client:
    """One rank's transport and everything around it. `region` tells the regions of one process apart."""

    module: ModuleType | Any
    ranks: Ranks
    rank: int
    experts: int
    expert_nbytes: Sequence[int]
    produce: Produce | None
    region: int = 0
    timeout_ms: int | None = 60_000
    device_fault: bool = False  # this rank's device cannot be set up: its constructor is to raise
    transport: Any = None
    epoch: int = 0
    loads: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tp = self.ranks.tp
        self.tensors = [np.zeros(self.experts * nbytes, dtype=np.uint8) for nbytes in self.expert_nbytes]
        self.fence = threading.Event()
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.mapped: list[Shared] = []
        control = self._control()
        self._map_slots()
        self.ranks.barrier()
        if self.rank == 0:
            for shared in self.mapped:  # everybody has mapped what it needs
                shared.unlink()
        mapped_here = range(tp if self.rank == 0 else 0)
        everybody = [self._slot(s, r, k) for s in range(SLOTS) for r in mapped_here for k in range(KINDS)]
        arguments = [
            control.address,
            self.module.FP8_LAYERWISE_CONTROL_BYTES,
            self.rank,
            tp,
            -1,
            [self._slot(slot, self.rank, kind) for slot in range(SLOTS) for kind in range(KINDS)],
            [0 if self.device_fault else tensor.ctypes.data for tensor in self.tensors],
            everybody,
            list(self.expert_nbytes),
            self.experts,
            *([] if self.timeout_ms is None else [self.timeout_ms]),
        ]
        try:
            self.transport = self.module.FP8LayerwiseTransport(*arguments)
        except Exception:
            self.ranks.all_well(self.rank, False)
            self.end()
            raise
        if not self.ranks.all_well(self.rank, True):
            self.end()
            raise RuntimeError("another rank could not construct its transport")
        self.addresses = [tensor.ctypes.data for tensor in self.tensors]

    def _control(self) -> Shared:
        nbytes = self.module.FP8_LAYERWISE_CONTROL_BYTES
        if self.rank == 0:
            control = self._share("control", nbytes, create=True)
            self.module.initialize_fp8_layerwise_control(control.address, nbytes, self.ranks.tp)
        self.ranks.barrier()
        if self.rank != 0:
            control = self._share("control", nbytes, create=False)
        return control

    def _map_slots(self) -> None:
        sizes = [SLOTS * nbytes for nbytes in self.expert_nbytes]
        own = [self._share(f"slots-{self.rank}-{kind}", sizes[kind], create=True) for kind in range(KINDS)]
        self.ranks.barrier()
        self.slots = {self.rank: own}
        if self.rank == 0:
            for rank in range(1, self.ranks.tp):
                self.slots[rank] = [
                    self._share(f"slots-{rank}-{kind}", sizes[kind], create=False) for kind in range(KINDS)
                ]

    def _share(self, name: str, nbytes: int, *, create: bool) -> Shared:
        shared = Shared(f"{self.ranks.prefix}-{self.region}-{name}", nbytes, create=create)
        self.mapped.append(shared)
        return shared

    def _slot(self, slot: int, rank: int, kind: int) -> int:
        return self.slots[rank][kind].address + slot * self.expert_nbytes[kind]

    def load(self, layer: int) -> dict[str, Any]:
        """Brings a layer's bytes into the tensors. Called from the main thread and from the worker, never at once."""
        self.epoch += 1
        self.transport.join(self.epoch, layer, self.experts)
        if self.produce is not None:
            self.produce(self.transport, self.epoch, layer, self.experts)
        found = dict(self.transport.wait(self.epoch))
        assert found.keys() >= STATISTICS
        assert (found["epoch"], found["layer_id"], found["rank"]) == (self.epoch, layer, self.rank)
        assert (found["expert_count"], found["bytes"]) == (self.experts, self.experts * sum(self.expert_nbytes))
        assert not found["poisoned"] and found["error_message"] == ""
        self.loads.append(found)
        return found

    def prefetch(self, layer: int) -> Future[dict[str, Any]]:
        def body() -> dict[str, Any]:
            assert self.fence.wait(HANG)
            self.fence.clear()
            return self.load(layer)

        return self.worker.submit(body)

    def round(self, layers: Sequence[int], chunks: int, use: Callable[[int, list[np.ndarray]], None]) -> None:
        """A prompt in chunks, each of which passes all layers. On any error closes, unmaps at once and re-raises."""
        try:
            order = [*layers] * chunks
            self.load(order[0])
            for position, layer in enumerate(order):
                successor = None
                if position + 1 < len(order):  # behind the last layer comes the next chunk's first
                    successor = self.prefetch(order[position + 1])
                try:
                    use(layer, self.tensors)
                finally:
                    if successor is not None:
                        self.fence.set()  # consumed: the device layer may be overwritten
                if successor is not None:
                    successor.result(HANG)
            assert [tensor.ctypes.data for tensor in self.tensors] == self.addresses
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """`close`, and at once no mapping any more: a thread or copy that still ran would end the process."""
        if self.transport is not None:
            self.transport.close()
        self.unmap()
        self.worker.shutdown()

    def unmap(self) -> None:
        for shared in self.mapped:
            shared.unmap()
        self.mapped = []
