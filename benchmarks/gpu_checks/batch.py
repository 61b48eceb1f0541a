"""Whether `batch=yes` pays: all copies of a piece in one call of the driver, against a call for each.

Only where a piece is of several copies is there anything to batch. One copy goes as far as the bytes lie next to each
other: a whole layer straight from an arena is a few long ones, cut every 4 MiB, each a piece of its own. So this takes
what a rank of several has, scales of a few hundred bytes beside weights of megabytes: staged, where a piece holds the
kinds of several experts, and straight from an arena with every second expert, as a routed selection has gaps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

from gpu_checks.driver import opened_driver
from gpu_checks.report import PIECE, Check, Row
from gpu_checks.rig import PinnedLayer, copy_thread_s, opened

if TYPE_CHECKING:
    from layercast import Transport

CUTS = (("glm-5-next", 8), ("deepseek-v3", 8), ("qwen3-30b", 2))  # T: the most that the blocks of 128 allow, up to 8
GAIN, LOSS = 1.02, 0.98  # of the throughput without: less is no difference
SAVED = 0.9  # of the copying thread's CPU without
FUNCTION = "cuMemcpyBatchAsync_v2"


@dataclasses.dataclass
class Side:
    """One of the two that take turns."""

    transport: Transport
    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: float = 0.0

    def load(self, epoch: int, experts: Any, writer: Any) -> None:
        own, started = copy_thread_s(), time.monotonic()
        self.transport.load(epoch, 0, experts, writer)
        if epoch > 1:  # the first one warms up
            self.seconds.append(time.monotonic() - started)
            self.cpu += copy_thread_s() - own

    @property
    def cores(self) -> float:
        return self.cpu / sum(self.seconds)


def batch(check: Check) -> None:
    """Throughput and the copying thread's CPU, with and without, in turns."""
    from layercast.errors import DeviceError

    with opened_driver(check) as driver:
        there = driver.has(FUNCTION)
    if not there:
        return _lacks(check, f"the driver has no {FUNCTION}")
    rates: list[float] = []
    cpus: list[float] = []
    for name, tp in CUTS:
        for path in ("staged", "direct, gaps"):
            try:
                rate, cpu = _measure(check, name, tp, path)
            except DeviceError as error:
                if "CUDA_ERROR_NOT_SUPPORTED" not in str(error):
                    raise
                return _lacks(check, str(error))
            rates.append(rate)
            cpus.append(cpu)
    check.answers["batch"] = _meaning(rates, cpus)
    return None


def _lacks(check: Check, why: str) -> None:
    check.rows.append(Row("batch=yes over no", "all", None, "GB/s", note=why))
    check.answers["batch"] = f"batch=yes is of no use here: {why}"


def _measure(check: Check, name: str, tp: int, path: str) -> tuple[float, float]:
    """Of a call for each copy: throughput, CPU of the copying thread."""
    import numpy as np

    from layercast.devices import Cuda
    from layercast.geometry import SHAPES
    from layercast.writers import memory_writer

    kinds = list(SHAPES[name].layout(tp).sizes)
    count = max(4, min(SHAPES[name].experts, (check.mib << 20) // sum(kinds)))
    experts: Any = count
    writer: Any = None
    with contextlib.ExitStack() as stack:
        sides = []
        devices = [
            stack.enter_context(contextlib.closing(Cuda(check.device, batch=on, driver=check.driver or None).open()))
            for on in (False, True)
        ]
        if path == "staged":
            few = min(count, 16)
            writer = memory_writer(np.ones(few * sum(kinds), np.uint8), kinds, 1, few)
        else:
            experts = list(range(0, count, 2))
            layer = PinnedLayer(devices[0], kinds, count)
            stack.callback(layer.close)
            devices[1].pin(layer.address, layer.nbytes)  # is registered already
            stack.callback(devices[1].unpin, layer.address)
        for device in devices:
            transport = stack.enter_context(opened(check, kinds, count, device=device, piece_bytes=PIECE))
            if writer is None:
                transport.use_arena(layer)  # type: ignore[arg-type]
            sides.append(Side(transport))
        for epoch in range(1, 2 * check.rounds + 2):
            for side in sides:
                side.load(epoch, experts, writer)
    nbytes = (count if path == "staged" else len(experts)) * sum(kinds)
    without, batched = (nbytes / statistics.median(side.seconds) / 1e9 for side in sides)
    case = f"{name} T {tp}, {path}"
    check.rows.append(Row("batch=yes over no", case, batched, "GB/s", without).judged(at_least=GAIN))
    cpu = Row("batch=yes: copying thread", case, sides[1].cores, "cores", sides[0].cores or None)
    check.rows.append(cpu)
    return batched / without, cpu.ratio or 1.0


def _meaning(rates: list[float], cpus: list[float]) -> str:
    seen = (
        f"{min(rates):.2f} to {max(rates):.2f} of the throughput of a call for each copy, "
        f"{min(cpus):.2f} to {max(cpus):.2f} of the copying thread's CPU"
    )
    if min(rates) < LOSS:
        verdict = "depends on the shape" if max(rates) >= GAIN else "does not pay"
    else:
        pays = statistics.median(rates) >= GAIN or statistics.median(cpus) <= SAVED
        verdict = "pays" if pays else "does not pay"
    return f"batch=yes {verdict}: {seen}"
