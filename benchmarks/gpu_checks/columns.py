"""Columns of w2 straight from pinned memory by 2-D copies: is cutting them at load time needed?

w2 of an expert is [H, I]; rank r of T owns columns [r * I / T, (r + 1) * I / T). Where an arena holds w2 whole, a 2-D
copy takes them from H rows; where it was cut at load time, they are one string of bytes. Both move the same bytes,
expert by expert, in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from ctypes import byref

from gpu_checks.driver import Constant, Copy2D, Driver, Lacks, opened_driver
from gpu_checks.report import Check, Row

SHAPES = ("deepseek-v3", "glm-5-next")
RANKS = (2, 4, 8)
ENOUGH = 0.95  # of the contiguous rate: less is lost than one layer differs from the next


class Matrices:
    """`count` matrices [rows, row] of bytes in pinned memory, and room for half of them on the device."""

    def __init__(self, driver: Driver, count: int, rows: int, row: int) -> None:
        import numpy as np

        self.count, self.rows, self.row = count, rows, row
        self.host = driver.pinned(count * rows * row)
        self.host[-rows * row :] = np.resize(np.arange(251, dtype=np.uint8), rows * row)  # 251: no column is another's
        self.device = driver.allocate(self.host.nbytes // 2)
        self.driver, self.stream = driver, driver.stream()
        self._copy, self._copy_2d = driver.function("cuMemcpyHtoDAsync_v2"), driver.function("cuMemcpy2DAsync_v2")

    def contiguous(self, width: int) -> None:
        nbytes, base = self.rows * width, self.host.ctypes.data
        for i in range(self.count):
            result = self._copy(self.device + i * nbytes, base + i * self.rows * self.row, nbytes, self.stream)
            self.driver.check("cuMemcpyHtoDAsync", result)
        self.driver.call("cuStreamSynchronize", self.stream)

    def columns(self, first: int, width: int) -> None:
        nbytes, base = self.rows * width, self.host.ctypes.data
        copy = Copy2D(
            srcXInBytes=first, srcMemoryType=Constant.CU_MEMORYTYPE_HOST, srcPitch=self.row,
            dstMemoryType=Constant.CU_MEMORYTYPE_DEVICE, dstPitch=width, WidthInBytes=width, Height=self.rows,
        )  # fmt: skip
        for i in range(self.count):
            copy.srcHost, copy.dstDevice = base + i * self.rows * self.row, self.device + i * nbytes
            self.driver.check("cuMemcpy2DAsync", self._copy_2d(byref(copy), self.stream))
        self.driver.call("cuStreamSynchronize", self.stream)

    def check_last(self, first: int, width: int) -> None:
        """The last matrix's columns are what lies on the device."""
        import numpy as np

        nbytes = self.rows * width
        seen = np.empty(nbytes, np.uint8)
        at = self.device + (self.count - 1) * nbytes
        self.driver.call("cuMemcpyDtoHAsync_v2", seen.ctypes.data, at, nbytes, self.stream)
        self.driver.call("cuStreamSynchronize", self.stream)
        expected = self.host[-self.rows * self.row :].reshape(self.rows, self.row)[:, first : first + width]
        wrong = int((seen.reshape(self.rows, width) != expected).sum())
        if wrong:
            raise RuntimeError(f"columns [{first}, {first + width}): {wrong} of {nbytes} bytes arrived wrong")


def columns(check: Check) -> None:
    """2-D copies of a rank's columns against contiguous copies of as many bytes."""
    from layercast.geometry import SHAPES as ALL

    ratios: list[float] = []
    for name in SHAPES:
        shape = ALL[name]
        count = max(2, min(shape.experts, (check.mib << 20) // (shape.hidden * shape.intermediate)))
        with opened_driver(check) as driver:
            try:
                matrices = Matrices(driver, count, shape.hidden, shape.intermediate)
                for tp in RANKS:
                    ratios.append(_measure(check, matrices, name, tp))
            except Lacks as why:
                check.rows.append(Row("w2 columns", name, None, "GB/s", note=str(why)))
    if ratios:
        check.answers["columns"] = _meaning(ratios)


def _measure(check: Check, matrices: Matrices, name: str, tp: int) -> float:
    width = matrices.row // tp
    first = (tp - 1) * width
    nbytes = matrices.count * matrices.rows * width
    ways: tuple[Callable[[], None], ...] = (
        lambda: matrices.contiguous(width),
        lambda: matrices.columns(first, width),
    )
    times: list[list[float]] = [[], []]
    for turn in range(check.rounds + 1):
        for i, way in enumerate(ways):
            started = time.monotonic()
            way()
            if turn:  # the first one warms up
                times[i].append(time.monotonic() - started)
    matrices.check_last(first, width)
    whole, cut = (nbytes / statistics.median(each) / 1e9 for each in times)
    check.rows.append(Row("w2 contiguous", f"{name}, T {tp}", whole, "GB/s"))
    case = f"{name}, T {tp}, {width}-byte rows"
    check.rows.append(Row("w2 columns", case, cut, "GB/s", whole).judged(at_least=ENOUGH))
    return cut / whole


def _meaning(ratios: list[float]) -> str:
    seen = f"2-D copies of w2's columns reach {min(ratios):.2f} to {max(ratios):.2f} of contiguous copies"
    if min(ratios) >= ENOUGH:
        return f"{seen}: cutting w2 at load time is not needed"
    if max(ratios) < ENOUGH:
        return f"{seen}: cutting w2 at load time pays, each layer would take longer without"
    return f"{seen}: cutting w2 at load time pays where the ratio is below {ENOUGH}"
