"""One rank of this library in this process, and a clock beside it."""

from __future__ import annotations

import contextlib
import mmap
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_checks.report import Check

if TYPE_CHECKING:
    from layercast import Transport


@contextlib.contextmanager
def opened(check: Check, kinds: list[int], experts: int, **options: Any) -> Iterator[Transport]:
    """A transport of one rank, in this process."""
    from layercast import Group, Transport
    from layercast.devices import Cuda

    device = options.pop("device", None) or Cuda(check.device, driver=check.driver or None)
    with (
        tempfile.TemporaryDirectory() as folder,
        Group("gpu-check", 0, 1, runtime_dir=folder) as group,
        Transport(group, kinds, num_experts=experts, device=device, **options) as transport,
    ):
        yield transport


class PinnedLayer:
    """A layer in pinned host memory, laid out as an arena has it."""

    def __init__(self, device: Any, kinds: list[int], experts: int) -> None:
        import numpy as np

        self.rank, self.tp, self.kind_bytes, self.layers = 0, 1, tuple(kinds), (0,)
        self.nbytes = sum(kinds) * experts
        self._memory = np.empty(self.nbytes + mmap.PAGESIZE, np.uint8)
        self.address = -(-self._memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory[:: mmap.PAGESIZE] = 7
        self._device, self._kinds, self._experts = device, kinds, experts
        device.pin(self.address, self.nbytes)

    def addresses(self, layer: int) -> list[int]:
        out, at = [], self.address
        for nbytes in self._kinds:
            out.append(at)
            at += nbytes * self._experts
        return out

    def close(self) -> None:
        self._device.unpin(self.address)


def copy_thread_s() -> float:
    """CPU seconds that this process's copying threads have used."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith("layercast-copy"):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def timed_layers(check: Check, transport: Transport, experts: int, writer: Any) -> tuple[float, float, float]:
    """Median seconds of a layer; CPU seconds per second of the copying thread, and of the whole process."""
    transport.load(1, 0, experts, writer)
    times = []
    own, process, started = copy_thread_s(), time.process_time(), time.monotonic()
    for epoch in range(2, check.rounds + 2):
        begun = time.monotonic()
        transport.load(epoch, 0, experts, writer)
        times.append(time.monotonic() - begun)
    wall = time.monotonic() - started
    return statistics.median(times), (copy_thread_s() - own) / wall, (time.process_time() - process) / wall
