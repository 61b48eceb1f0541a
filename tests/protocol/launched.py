"""What the ranks of test_launch.py run: functions of a module, since they are pickled."""

from __future__ import annotations

import os
import signal
import sys
import time

from layercast import Group


def square(group: Group, offset: int) -> tuple[int, int]:
    values = group.gather("squares", group.rank**2 + offset)
    return group.rank, sum(values)


def fail(group: Group, culprit: int) -> None:
    if group.rank == culprit:
        raise KeyError("the culprit's own words")
    group.barrier("never")


def kill_itself(group: Group, culprit: int) -> None:
    if group.rank == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier("never")


def leave(group: Group, status: int) -> None:
    if group.rank == 1:
        sys.exit(status)
    group.barrier("never")


def sleep(group: Group, seconds: float) -> None:
    print(os.getpid(), flush=True)
    time.sleep(seconds)


def unpicklable(group: Group) -> object:
    return lambda: None


def deep(group: Group) -> None:
    class Local(Exception):
        """Cannot be rebuilt elsewhere."""

    raise Local("only its text travels")


def environment(group: Group) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in ("A_VARIABLE",)}
