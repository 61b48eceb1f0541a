"""What the ranks of test_launch.py run: functions of a module, since they are pickled."""

from __future__ import annotations

import os
import signal
import sys
import time

from layercast import Group, errors


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
    os.write(1, f"{os.getpid()}\n".encode())  # in one piece: ranks share the pipe
    time.sleep(seconds)


def unpicklable(group: Group) -> object:
    return lambda: None


def deep(group: Group) -> None:
    class Local(Exception):
        """Cannot be rebuilt elsewhere."""

    raise Local("only its text travels")


def environment(group: Group) -> dict[str, str]:
    return {name: os.environ.get(name, "") for name in ("A_VARIABLE",)}


def wrap(group: Group, culprit: int) -> None:
    """As `fail`, where the others wrap what they hear, one by `from`, one without a word."""
    if group.rank == culprit:
        group.close()  # the others hear of it, and fail, before the culprit can say why
        time.sleep(0.3)
        raise KeyError("the culprit's own words")
    try:
        group.barrier("never")
    except errors.LayercastError as error:
        if group.rank % 2:
            raise RuntimeError("the caller's own words") from error
        raise RuntimeError("the caller's own words")  # noqa: B904 - so do callers


def leave_a_child(group: Group, seconds: float) -> int:
    """Its child inherits every descriptor, and lives on."""
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(0)
    return pid


def leave_a_child_and_die(group: Group, seconds: float) -> None:
    leave_a_child(group, seconds)
    os.kill(os.getpid(), signal.SIGKILL)
