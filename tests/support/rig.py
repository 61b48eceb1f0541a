"""A group inside one process: every rank a thread with a native transport of its own over plain shared memory."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from layercast import _native


class Region:
    """Anonymous shared memory, page-aligned, zeroed; inherited by fork."""

    def __init__(self, nbytes: int) -> None:
        self.map = mmap.mmap(-1, max(nbytes, 1))
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.array = np.frombuffer(self.map, dtype=np.uint8)


@dataclass
class Rig:
    """`version` 2: one expert per slot, two slots. 3: pieces of `piece_bytes` in `slots` slots."""

    tp: int
    kinds: Sequence[int]
    experts: int
    version: int = 3
    slots: int = 4
    piece_bytes: int = 4096
    timeout_ms: int | None = 20_000
    join_timeout_ms: int | None = 20_000
    writer_timeout_ms: int | None = None
    device: Callable[[], _native.Device] = _native.host_device
    transports: list[_native.Transport] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.version == 2:
            self.slots, ranks = 2, 8
        else:
            ranks = self.tp
        share = sum(self.kinds)
        self.slot_bytes = share if self.version == 2 else max(self.piece_bytes, share)
        self.control = Region(max(8192, _native.control_bytes(ranks, self.slots)))
        _native.initialize_control(self.control.address, self.control.nbytes, self.tp, self.version, ranks, self.slots)
        self.slot_memory = [Region(self.slots * self.slot_bytes) for _ in range(self.tp)]
        self.destinations = [[Region(self.experts * k) for k in self.kinds] for _ in range(self.tp)]

    def slot_pointers(self, slot: int, rank: int) -> list[int]:
        base = self.slot_memory[rank].address + slot * self.slot_bytes
        if self.version == 3:
            return [base]
        starts = np.cumsum([0, *self.kinds[:-1]])
        return [base + int(start) for start in starts]

    def open(self, rank: int, /, **overrides: object) -> _native.Transport:
        local = [p for s in range(self.slots) for p in self.slot_pointers(s, rank)]
        everybody = [p for s in range(self.slots) for r in range(self.tp) for p in self.slot_pointers(s, r)]
        arguments: dict[str, object] = {
            "control": self.control.address,
            "control_bytes": self.control.nbytes,
            "rank": rank,
            "tp_size": self.tp,
            "kind_bytes": list(self.kinds),
            "experts": self.experts,
            "local_slots": local,
            "all_slots": everybody if rank == 0 else [],
            "slot_bytes": self.slot_bytes,
            "piece_bytes": self.piece_bytes,
            "destinations": [d.address for d in self.destinations[rank]],
            "device": self.make_device(),
            "timeout_ms": self.timeout_ms,
            "join_timeout_ms": self.join_timeout_ms,
            "writer_timeout_ms": self.writer_timeout_ms,
        }
        arguments.update(overrides)
        return _native.Transport(**arguments)  # type: ignore[arg-type]

    def make_device(self) -> _native.Device:
        return self.device()

    def spoil(self) -> None:
        """What lies in the destinations before a layer must not look like it."""
        for per_rank in self.destinations:
            for region in per_rank:
                region.array[:] = 0xEE

    def open_all(self) -> Rig:
        self.transports = [self.open(rank) for rank in range(self.tp)]
        return self

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def __enter__(self) -> Rig:
        return self.open_all()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def each(self, call: Callable[[int], object], ranks: Sequence[int] | None = None) -> list[object]:
        """Runs `call(rank)` in a thread per rank; an exception is that rank's result."""
        ranks = range(self.tp) if ranks is None else ranks
        results: dict[int, object] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = call(rank)
            except BaseException as error:  # noqa: BLE001 - the exception is the result
                results[rank] = error

        threads = [threading.Thread(target=body, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        return [results[rank] for rank in ranks]

    def load(self, epoch: int, layer: int, experts: int, writer: _native.Writer) -> list[object]:
        """One whole layer on every rank; each rank's statistics or exception."""

        def call(rank: int) -> object:
            transport = self.transports[rank]
            transport.join(epoch, layer, experts)
            if rank == 0:
                transport.run(epoch, layer, experts, writer)
            return transport.wait(epoch)

        return self.each(call)

    def load_checked(self, epoch: int, layer: int, experts: int, writer: _native.Writer) -> list[dict[str, object]]:
        results = self.load(epoch, layer, experts, writer)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results  # type: ignore[return-value]

    def wrong(self, seed: int, layer: int, experts: int) -> list[int]:
        """Per rank: experts in its destination that a pattern writer did not write so."""
        return [
            _native.count_wrong_pattern(
                seed, layer, rank, experts, list(self.kinds), [d.address for d in self.destinations[rank]]
            )[0]
            for rank in range(self.tp)
        ]
