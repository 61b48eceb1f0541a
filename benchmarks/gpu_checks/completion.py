"""Which way to learn that copies have ended is best: how soon, at what cost, and whether the copies suffer.

Notice: a piece is copied to the device, then 4 bytes back into host memory, and the way's mark stands behind them. A
process of its own sees the bytes change: that is the copy's end. The piece ahead takes long enough for whoever sleeps
to be asleep by then.

Pieces: a stream of them in groups, a mark behind each group, two groups in flight, as the library's consumer looks at
half of what is in flight. CPU seconds are the whole process's, the driver's threads among them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from gpu_checks import observer
from gpu_checks.driver import Driver, Lacks, opened_driver
from gpu_checks.report import Check, Row
from gpu_checks.ways import WAYS, Way, exact_sleeps

PIECE = 3 << 20
GROUP = 4
SLOTS = 2 * GROUP
AS_FAST = 0.97  # of the fastest way's throughput
LATE = 0.1  # of the notices before the observer's own: then their median says little
SAMPLES = 200  # a round
SECONDS = 0.2  # a round


@dataclasses.dataclass
class Figures:
    median_us: float
    p99_us: float
    unseen: float  # part of the notices that came before the observer's own
    cores: float
    rate: float  # bytes per second


class Observer:
    """The process that sees the 4 bytes arrive, and the memory that it shares."""

    def __init__(self, driver: Driver, count: int) -> None:
        import numpy as np

        nbytes = observer.PAGE + (count + 1) * 8
        self._file = os.memfd_create("gpu-check")
        os.ftruncate(self._file, nbytes)
        memory = np.frombuffer(mmap.mmap(self._file, nbytes), np.uint8)
        driver.register(memory[: observer.PAGE])
        self.address = memory.ctypes.data
        self._seen = memoryview(memory)[observer.PAGE :].cast("Q")
        command = [sys.executable, observer.__file__, str(self._file), str(count)]
        self._process = subprocess.Popen(command, pass_fds=[self._file])
        self.when(0)

    def when(self, value: int) -> int:
        """When the value was seen, in monotonic nanoseconds; waits for the other process to say it."""
        until = time.monotonic() + 10
        while self._seen[value] == 0:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the observing process has not seen copy {value}")
            time.sleep(20e-6)
        return self._seen[value]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._file)


class Rig:
    """Pieces to copy, a stream to copy them in, and the numbers that come back as the 4 bytes."""

    def __init__(self, driver: Driver, count: int) -> None:
        import numpy as np

        self.driver = driver
        self._host, self._device = driver.pinned(SLOTS * PIECE), driver.allocate(SLOTS * PIECE)
        numbers = driver.pinned(-(-(count + 1) * 4 // mmap.PAGESIZE) * mmap.PAGESIZE)
        numbers.view(np.uint32)[: count + 1] = np.arange(count + 1)
        self._numbers = driver.allocate(numbers.nbytes)
        self.stream = driver.stream()
        self._there, self._back = driver.function("cuMemcpyHtoDAsync_v2"), driver.function("cuMemcpyDtoHAsync_v2")
        driver.call("cuMemcpyHtoDAsync_v2", self._numbers, numbers.ctypes.data, numbers.nbytes, self.stream)
        driver.call("cuStreamSynchronize", self.stream)
        self.last = 0

    def piece(self, slot: int) -> None:
        at = slot % SLOTS * PIECE
        result = self._there(self._device + at, self._host.ctypes.data + at, PIECE, self.stream)
        self.driver.check("cuMemcpyHtoDAsync", result)

    def number(self, to: int) -> int:
        """Copies the next number to host memory; returns it."""
        self.last += 1
        self.driver.check("cuMemcpyDtoHAsync", self._back(to, self._numbers + 4 * self.last, 4, self.stream))
        return self.last


def completion(check: Check) -> None:
    """Every way's notice, and what a stream of pieces costs and reaches with it."""
    samples, seconds = SAMPLES * check.rounds, SECONDS * check.rounds
    found: dict[str, Figures] = {}
    with opened_driver(check) as driver, exact_sleeps():
        count = samples * len(WAYS)
        rig = Rig(driver, count)
        notices: dict[type[Way], list[float]] = {}
        with contextlib.closing(Observer(driver, count)) as watching:
            for kind in WAYS:
                with _or_say_why(check, kind):
                    notices[kind] = _notices(rig, kind(driver, rig.stream), watching, samples)
        for kind, us in notices.items():  # now that nobody else spins
            cores, rate = _pieces(rig, kind(driver, rig.stream), seconds)
            # A notice proves the end: nothing below 0 is a latency.
            median, p99 = max(0, statistics.median(us)), max(0, us[int(len(us) * 0.99)])
            found[kind.name] = Figures(median, p99, sum(each < 0 for each in us) / samples, cores, rate)
    for name, figures in found.items():
        late = f"the observer was late for {figures.unseen:.0%}: too few CPUs" if figures.unseen > LATE else ""
        check.rows.append(Row("notice", f"{name}, median", figures.median_us, "us", note=late))
        check.rows.append(Row("notice", f"{name}, p99", figures.p99_us, "us", note=late))
        check.rows.append(Row("3 MiB pieces: CPU", name, figures.cores, "CPU s/s"))
        limit = check.bandwidth / 1e9 or None
        check.rows.append(Row("3 MiB pieces", name, figures.rate / 1e9, "GB/s", limit))
    if found:
        check.answers["completion"] = _meaning(found)


@contextlib.contextmanager
def _or_say_why(check: Check, kind: type[Way]) -> Iterator[None]:
    try:
        yield
    except Lacks as why:
        check.rows.append(Row("notice", kind.name, None, "us", note=str(why)))


def _notices(rig: Rig, way: Way, watching: Observer, samples: int) -> list[float]:
    """Microseconds from the end of a copy to the notice, in order of size; below 0: the observer was late."""
    out = []
    for sample in range(samples):
        rig.piece(sample)
        number = rig.number(watching.address)
        way.mark()
        way.wait()
        noticed = time.monotonic_ns()
        out.append((noticed - watching.when(number)) / 1e3)
    return sorted(out)


def _pieces(rig: Rig, way: Way, seconds: float) -> tuple[float, float]:
    """CPU seconds per second, and bytes per second."""

    def group() -> None:
        for slot in range(GROUP):
            rig.piece(slot)
        way.mark()

    group()
    way.wait()
    cpu, started = time.process_time(), time.monotonic()
    group()
    group()
    groups = 2
    while time.monotonic() < started + seconds:
        way.wait()
        group()
        groups += 1
    way.wait()
    way.wait()
    wall = time.monotonic() - started
    return (time.process_time() - cpu) / wall, groups * GROUP * PIECE / wall


def _meaning(found: dict[str, Figures]) -> str:
    first = min(found, key=lambda name: found[name].median_us)
    most = max(figures.rate for figures in found.values())
    fast = [name for name in found if found[name].rate >= AS_FAST * most]
    least = min(fast, key=lambda name: found[name].cores)
    return (
        f"soonest notice: {first} ({found[first].median_us:.1f} us); least CPU among those within "
        f"{100 - AS_FAST * 100:.0f} % of the fastest: {least} ({found[least].cores:.2f} CPU s/s, "
        f"notice {found[least].median_us:.1f} us)"
    )
