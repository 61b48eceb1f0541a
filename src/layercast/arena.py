"""Host memory that holds a model's experts already cut for one rank: the path without writer and slots."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from layercast import _native, numa
from layercast.devices import pin
from layercast.errors import ConfigError, ResourceError, StateError
from layercast.memory import headroom
from layercast.sources import LayerSource

_HUGE_PAGE = 2 << 20
_CHUNK_BYTES = 64 << 20  # per task: small enough for an even share, large enough not to matter

#: `progress(bytes done, bytes in all)`, from any thread, one at a time.
Progress = Callable[[int, int], object]


class Arena:
    """One rank's share of some layers, laid out as on the device: per layer and kind [experts, bytes], contiguous.

    The device then copies straight from here; memory is crossed once. It belongs to its rank's process, in huge pages
    where the machine allows them, and is pinned by the device that is given. Layers are loaded once, by `threads`
    threads (None: the cores of this process over the ranks). Raises ConfigError, and ResourceError before anything is
    loaded where memory would not suffice.
    """

    def __init__(
        self,
        source: LayerSource,
        rank: int,
        tp: int,
        *,
        layers: Sequence[int] | None = None,
        device: _native.Device | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        if tp < 1 or not 0 <= rank < tp:
            raise ConfigError(f"rank {rank} of tp={tp}: a rank from 0 to tp - 1 is needed")
        chosen = tuple(source.layers if layers is None else layers)
        if unknown := sorted(set(chosen) - set(source.layers)):
            raise ConfigError(f"arena: layers {unknown} are no MoE layers of {source.name}")
        self.rank, self.tp = rank, tp
        self.layout = source.layout(tp)
        self.kind_bytes = tuple(self.layout.sizes)
        self._experts = {layer: source.placement(layer, tp).positions for layer in chosen}
        self.nbytes = sum(self._layer_bytes(layer) for layer in chosen)
        room = headroom()
        if self.nbytes > room.nbytes:
            raise ResourceError(
                f"arena of rank {rank}: {len(chosen)} layers need {self.nbytes:,} bytes, available are"
                f" {room.nbytes:,} ({room.limit})",
                hint="load fewer layers, or stream from the checkpoint",
            )
        self._memory: np.ndarray[tuple[int], np.dtype[np.uint8]] | None
        self._memory = np.empty(self.nbytes + _HUGE_PAGE, np.uint8)
        self._base = -(-self._memory.ctypes.data // _HUGE_PAGE) * _HUGE_PAGE
        self._starts: dict[int, int] = {}
        at = self._base
        for layer in chosen:
            self._starts[layer] = at
            at += self._layer_bytes(layer)
        if device is not None and (node := numa.node_near(device.bus_id)) is not None:
            numa.prefer(self._base, self.nbytes, node)
        if threads is None:
            threads = max(1, len(os.sched_getaffinity(0)) // tp)
        self._load(source, threads, progress)
        self._device = device
        if device is not None:
            pin(device, self._base, self.nbytes, f"arena of rank {rank}")

    def _layer_bytes(self, layer: int) -> int:
        # Each layer begins on a page: a device may pin and copy page-wise.
        return -(-self._experts[layer] * sum(self.kind_bytes) // 4096) * 4096

    def _load(self, source: LayerSource, threads: int, progress: Progress | None) -> None:
        lock = threading.Lock()
        done = 0
        per_task = max(1, _CHUNK_BYTES // sum(self.kind_bytes))

        def fill(layer: int, writer: _native.Writer, first: int, count: int) -> None:
            nonlocal done
            _native.fill_arena(writer, layer, self.rank, self.tp, first, count, self.kind_bytes, self.addresses(layer))
            with lock:
                done += count * sum(self.kind_bytes)
                if progress is not None:
                    progress(min(done, self.nbytes), self.nbytes)

        with ThreadPoolExecutor(threads, thread_name_prefix="layercast arena") as pool:
            for layer, experts in self._experts.items():
                writer = source.writer(layer, self.tp)
                tasks = [
                    pool.submit(fill, layer, writer, first, min(per_task, experts - first))
                    for first in range(0, experts, per_task)
                ]
                for task in tasks:
                    task.result()

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that it holds."""
        return tuple(self._experts)

    def experts(self, layer: int) -> int:
        """Places for experts in a layer that it holds."""
        return self._experts[layer]

    def addresses(self, layer: int) -> list[int]:
        """Where the layer lies: one address per kind. Valid until `close`."""
        if self._memory is None:
            raise StateError("this arena is closed")
        out, at = [], self._starts[layer]
        for nbytes in self.kind_bytes:
            out.append(at)
            at += nbytes * self._experts[layer]
        return out

    def close(self) -> None:
        """Unpin and free. Close the transports that use it first. Idempotent."""
        if self._memory is None:
            return
        if self._device is not None:
            self._device.unpin(self._base)
        self._memory = None

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
