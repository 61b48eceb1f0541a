"""Ways to learn that copies have ended. Each stands a mark behind what was enqueued, and waits for its oldest mark."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from gpu_checks.driver import Constant, Driver, Event, HostFunction, Stream

LOOK_S = 50e-6  # between two looks of a way that sleeps
LOST_S = 0.05  # a device that has fallen off rings nobody
HANGS_S = 10.0
_PR_SET_TIMERSLACK = 29

_libc = ctypes.CDLL(None, use_errno=True)


class _Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Semaphore:
    """The C library's: the driver's thread posts it without Python, and so without Python's lock."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint64 * 8)()
        if _libc.sem_init(self._memory, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "sem_init")
        self.address = ctypes.addressof(self._memory)
        # Its result, which a void function has not, is left in a register that nobody reads.
        self.post = HostFunction(ctypes.cast(_libc.sem_post, ctypes.c_void_p).value)

    def wait(self, seconds: float) -> bool:
        until = time.time() + seconds
        limit = _Time(int(until), int(until % 1 * 1e9))
        return bool(_libc.sem_timedwait(self._memory, ctypes.byref(limit)) == 0)


class Way(ABC):
    """`copies`: the stream that the copies are in. Raises Lacks where the driver cannot do this."""

    name: str

    def __init__(self, driver: Driver, copies: Stream) -> None:
        self.driver, self.copies = driver, copies

    @abstractmethod
    def mark(self) -> None: ...
    @abstractmethod
    def wait(self) -> None: ...


class EventSpun(Way):
    """An event, asked for without a pause."""

    name = "event, spun"

    def __init__(self, driver: Driver, copies: Stream) -> None:
        super().__init__(driver, copies)
        self._record, self._query = driver.function("cuEventRecord"), driver.function("cuEventQuery")
        self._spare: list[Event] = []
        self._marks: collections.deque[Event] = collections.deque()

    def mark(self) -> None:
        event = self._spare.pop() if self._spare else self.driver.event()
        self.driver.check("cuEventRecord", self._record(event, self.copies))
        self._marks.append(event)

    def reached(self, event: Event) -> bool:
        result = int(self._query(event))
        if result == Constant.CUDA_ERROR_NOT_READY:
            return False
        self.driver.check("cuEventQuery", result)
        return True

    def wait(self) -> None:
        event = self._marks.popleft()
        until = time.monotonic() + HANGS_S
        while not self.reached(event):
            if time.monotonic() > until:
                raise _hangs(self.name)
        self._spare.append(event)


class EventBell(EventSpun):
    """An event, and before sleeping a host function behind it on a second stream: what this library does."""

    name = "event, bell on 2nd stream"

    def __init__(self, driver: Driver, copies: Stream) -> None:
        super().__init__(driver, copies)
        self._bells, self._bell = driver.stream(), Semaphore()
        self._wait_event, self._launch = driver.function("cuStreamWaitEvent"), driver.function("cuLaunchHostFunc")

    def wait(self) -> None:
        event = self._marks.popleft()
        if not self.reached(event):
            self.driver.check("cuStreamWaitEvent", self._wait_event(self._bells, event, 0))
            self.driver.check("cuLaunchHostFunc", self._launch(self._bells, self._bell.post, self._bell.address))
            _sleep_until_rung(self._bell, self.name, lambda: self.reached(event))
        self._spare.append(event)


class HostFunctionBell(Way):
    """A host function in the stream of the copies: those behind it stand until it has returned."""

    name = "host function, same stream"

    def __init__(self, driver: Driver, copies: Stream) -> None:
        super().__init__(driver, copies)
        self._bell, self._launch = Semaphore(), driver.function("cuLaunchHostFunc")

    def mark(self) -> None:
        self.driver.check("cuLaunchHostFunc", self._launch(self.copies, self._bell.post, self._bell.address))

    def wait(self) -> None:
        _sleep_until_rung(self._bell, self.name, lambda: False)


class WordSpun(Way):
    """A word of pinned host memory that the stream writes, looked at without a pause."""

    name = "word, spun"

    def __init__(self, driver: Driver, copies: Stream) -> None:
        super().__init__(driver, copies)
        self._write = driver.function("cuStreamWriteValue32_v2")
        memory = driver.pinned(4096)
        memory[:] = 0
        self._word, self._there = memoryview(memory)[:4].cast("I"), driver.there(memory.ctypes.data)
        self._marked = self._waited = 0

    def mark(self) -> None:
        self._marked += 1
        self.driver.check("cuStreamWriteValue32", self._write(self.copies, self._there, self._marked, 0))

    def pause(self) -> None:
        pass

    def wait(self) -> None:
        self._waited += 1
        word, number, until = self._word, self._waited, time.monotonic() + HANGS_S
        while word[0] < number:
            self.pause()
            if time.monotonic() > until:
                raise _hangs(self.name)


class WordSlept(WordSpun):
    """The same word, looked at every 50 us."""

    name = "word, every 50 us"

    def pause(self) -> None:
        time.sleep(LOOK_S)


WAYS: tuple[type[Way], ...] = (EventSpun, EventBell, HostFunctionBell, WordSpun, WordSlept)


@contextlib.contextmanager
def exact_sleeps() -> Iterator[None]:
    """Without, this thread's sleeps take up to 50 us longer than they were meant to."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_TIMERSLACK, 0, 0, 0, 0)  # 0: as it was at the start


def _sleep_until_rung(bell: Semaphore, name: str, look: Callable[[], object]) -> None:
    until = time.monotonic() + HANGS_S
    while not bell.wait(LOST_S):
        look()  # raises where the device has failed
        if time.monotonic() > until:
            raise _hangs(name)


def _hangs(name: str) -> RuntimeError:
    return RuntimeError(f"{name}: no notice within {HANGS_S:.0f} s")
