"""Rows T1 to T10 of the traps: time and liveness."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from pathlib import Path

import pytest
from tests.support.processes import Child, eventually
from tests.support.rig import Rig

from layercast import _native, errors

KINDS = (64, 8)


def slow_writer(seconds: float) -> _native.Writer:
    return _native.PythonWriter.views(lambda expert, views: time.sleep(seconds))


def test_trap_01_a_long_layer_that_moves_is_healthy() -> None:
    """Longer than the limit as a whole, with progress all the time."""
    with Rig(2, KINDS, 16, timeout_ms=400, piece_bytes=72) as rig:
        started = time.monotonic()
        rig.load_checked(1, 0, 16, slow_writer(0.1))
        assert time.monotonic() - started > 1.2


def thread_states() -> dict[str, tuple[str, int, float, int]]:
    """Per thread of the native core: state, futex or poll system call, CPU seconds, voluntary switches."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text().strip()
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        switches = int((task / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0])
        cpu = (int(fields[11]) + int(fields[12])) / tick
        found[f"{name}/{task.name}"] = (fields[0], 0, cpu, switches)
    return found


def test_trap_02_blocked_threads_sleep_in_the_kernel() -> None:
    with Rig(2, KINDS, 4, piece_bytes=72) as rig:
        release = threading.Event()
        worker = threading.Thread(
            target=rig.load,
            args=(1, 0, 4, _native.PythonWriter.views(lambda expert, views: release.wait(20))),
        )
        worker.start()
        eventually(lambda: struct.unpack_from("<Q", rig.control.map, 512)[0] == 1)
        time.sleep(0.2)
        states = {
            name: s[0] for name, s in thread_states().items() if name.startswith(("layercast-copy", "layercast-live"))
        }
        release.set()
        worker.join()
        assert len(states) == 4 and set(states.values()) == {"S"}, states


@pytest.mark.parametrize("blocked", [False, True], ids=["idle", "blocked"])
def test_trap_03_no_cpu_and_few_wake_ups(blocked: bool) -> None:
    release = threading.Event()
    with Rig(2, KINDS, 4, piece_bytes=72, timeout_ms=60_000) as rig:
        rig.load_checked(1, 0, 4, _native.pattern_writer(0))
        writer = _native.PythonWriter.views(lambda expert, views: release.wait(30))
        worker = threading.Thread(target=rig.load, args=(2, 0, 4, writer))
        if blocked:
            worker.start()
        time.sleep(0.3)
        before = thread_states()
        time.sleep(2)
        after = thread_states()
        release.set()
        if blocked:
            worker.join()
    for name, (_, _, cpu, switches) in after.items():
        if name.startswith("layercast"):
            assert cpu - before[name][2] <= 0.02, name
            assert switches - before[name][3] <= 40, (name, switches - before[name][3])


@pytest.mark.parametrize("limit", [2**64 - 1, 2**63, None])
def test_trap_08_any_limit_means_what_it_says(limit: int | None) -> None:
    with Rig(2, KINDS, 4, timeout_ms=limit, join_timeout_ms=limit) as rig:
        rig.load_checked(1, 0, 4, slow_writer(0.02))


@pytest.mark.parametrize("name", ["timeout_ms", "join_timeout_ms", "writer_timeout_ms"])
def test_trap_08_a_limit_of_zero_is_refused(name: str) -> None:
    with pytest.raises(errors.ConfigError, match="expected > 0"):
        Rig(1, KINDS, 4).open(0, **{name: 0})


def interrupted_call(rig: Rig, call: str) -> object:
    """Opens one rank of two and enters `call`, which cannot end: its peer never comes."""
    rank = 1 if call == "follow" else 0
    transport = rig.open(rank)
    if call == "lead":
        # A second join waits for rank 1 to have returned from the first epoch.
        struct.pack_into("<Q", rig.control.map, 512, 1)
    transport.join(2, 0, 4)
    if call == "run":
        transport.run(2, 0, 4, _native.pattern_writer(0))
    raise AssertionError("the call ended")


@pytest.mark.parametrize("call", ["lead", "follow", "run"])
def test_trap_10_ctrl_c_ends_every_call(call: str) -> None:
    rig = Rig(2, KINDS, 4, slots=1, timeout_ms=60_000, join_timeout_ms=60_000)
    child = Child(lambda: interrupted_call(rig, call))
    time.sleep(0.7)
    asked = time.monotonic()
    child.signal(signal.SIGINT)
    known, result = child.timed_result()
    assert isinstance(result, KeyboardInterrupt), result
    assert known - asked < 0.5


def test_trap_10_ctrl_c_ends_wait_and_tells_the_peers() -> None:
    rig = Rig(2, KINDS, 4, piece_bytes=72)

    def follower() -> object:
        transport = rig.open(1)
        transport.join(1, 0, 4)
        return transport.wait(1)

    child = Child(follower)
    leader = rig.open(0)
    leader.join(1, 0, 4)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            leader.run(1, 0, 4, slow_writer(0.25))
        except errors.GroupError as error:
            raised.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    time.sleep(0.4)
    asked = time.monotonic()
    child.signal(signal.SIGINT)
    known, result = child.timed_result()
    worker.join()
    leader.close()
    assert isinstance(result, KeyboardInterrupt), result
    assert known - asked < 0.5
    assert "rank 1 was interrupted" in str(raised[0])
