"""Real processes over a rig's memory: forked, so that addresses stay the same; their results come back by pipe."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable


class Child:
    """Runs `body()` in a forked process; `result()` is what it returned or raised."""

    def __init__(self, body: Callable[[], object]) -> None:
        self.reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: what this is for
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                result: object = body()
            except BaseException as error:  # noqa: BLE001 - the exception is the result
                result = error
            try:
                blob = pickle.dumps((time.monotonic(), result))
            except Exception as error:  # noqa: BLE001
                blob = pickle.dumps((time.monotonic(), RuntimeError(f"not picklable: {result!r}: {error}")))
            with os.fdopen(writer, "wb") as stream:
                stream.write(blob)
            os._exit(0)
        os.close(writer)
        self.blob = b""
        self.status: int | None = None

    def result(self, timeout: float = 30) -> object:
        return self.timed_result(timeout)[1]

    def timed_result(self, timeout: float = 30) -> tuple[float, object]:
        """(time.monotonic() when it was known, the result)."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.reader], [], [], max(left, 0))
            if not ready:
                self.kill()
                raise AssertionError(f"the process hangs: no result in {timeout} s")
            chunk = os.read(self.reader, 1 << 16)
            if not chunk:
                break
            self.blob += chunk
        self.reap()
        assert self.blob, f"the process died without a result, status {self.status}"
        return pickle.loads(self.blob)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]

    def state(self) -> str:
        """R, S, D, T, Z ... of its main thread."""
        with open(f"/proc/{self.pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]


def eventually(condition: Callable[[], bool], timeout: float = 10) -> None:
    """For what another process or thread is about to do."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)
