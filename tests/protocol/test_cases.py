"""Failures that users of such systems met, and more traps: each named after its number."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.processes import Child, eventually
from tests.support.rig import Rig

from layercast import Group, Transport, _native, errors
from layercast.writers import pattern_writer

KINDS = (4000, 24)
EXPERTS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


def opened(folder: Path, rank: int, tp: int = 3, **options: object) -> tuple[Group, Transport]:
    group = Group("cases", rank, tp, runtime_dir=folder, timeout=30)
    patience = {"timeout": 20.0, "join_timeout": 20.0, **options}
    return group, Transport(group, KINDS, num_experts=EXPERTS, piece_bytes=3000, **patience)


def load(transport: Transport, epoch: int, writer: object = None) -> None:
    transport.load(epoch, 2, EXPERTS, writer or pattern_writer(epoch))  # type: ignore[arg-type]
    wrong, _ = _native.count_wrong_pattern(epoch, 2, transport.rank, EXPERTS, list(KINDS), transport.destinations)
    assert wrong == 0


@pytest.mark.parametrize("victim", [0, 2])
def test_trap_04_a_killed_peer_is_known_and_named_at_once_also_while_idle(folder: Path, victim: int) -> None:
    """Also when the dead rank's own child lives on and keeps its sockets open."""

    def body(rank: int) -> object:
        group, transport = opened(folder, rank)
        load(transport, 1)
        group.barrier("idle")
        if rank == victim:
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        eventually(lambda: transport.failed, 10)
        noticed = time.monotonic()
        with pytest.raises(errors.PeerDied) as caught:
            transport.join(2, 2, EXPERTS)
        transport.close()
        return noticed, caught.value.rank, caught.value.pid

    children = [Child(lambda rank=rank: body(rank)) for rank in range(3)]
    children[victim].reap()
    died = time.monotonic()
    for rank in sorted({0, 1, 2} - {victim}):
        noticed, who, pid = children[rank].result()  # type: ignore[misc]
        assert (who, pid) == (victim, children[victim].pid)
        assert noticed - died < 1


def test_trap_05_time_in_which_nobody_ran_does_not_count(folder: Path) -> None:
    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2, timeout=0.6)
        group.barrier("ready")
        (folder / f"in-{rank}").touch()
        load(transport, 1, None)
        (folder / f"first-{rank}").touch()
        transport.join(2, 2, EXPERTS)
        if rank == 0:
            transport.run(2, 2, EXPERTS, lambda expert, views: time.sleep(0.1))
        transport.wait(2)
        return "healthy"

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    eventually(lambda: all((folder / f"first-{rank}").exists() for rank in range(2)), 20)
    for child in children:
        child.signal(signal.SIGSTOP)
    time.sleep(1.5)
    for child in children:
        child.signal(signal.SIGCONT)
    assert [child.result() for child in children] == ["healthy"] * 2


def test_trap_06_a_slow_expert_is_no_stall_and_its_own_limit_is_heard_by_all() -> None:
    rig = Rig(3, KINDS, EXPERTS, timeout_ms=300)
    rig.transports = [rig.open(rank, writer_timeout_ms=1200) for rank in range(3)]
    slow = _native.PythonWriter.views(lambda expert, views: time.sleep(0.7 if expert == 2 else 0))
    rig.load_checked(1, 0, EXPERTS, slow)
    heard: dict[int, float] = {}
    stuck = threading.Event()
    writer = _native.PythonWriter.views(lambda expert, views: stuck.wait(2.5))

    def call(rank: int) -> object:
        try:
            rig.transports[rank].join(2, 0, EXPERTS)
            if rank == 0:
                rig.transports[0].run(2, 0, EXPERTS, writer)
            return rig.transports[rank].wait(2)
        finally:
            heard[rank] = time.monotonic()

    results = rig.each(call)
    for error in results:
        assert isinstance(error, errors.LayerTimeout), error
        assert "inside expert 0" in str(error)
    assert abs(heard[1] - heard[2]) < 0.2
    rig.close()


def test_trap_07_early_ranks_wait_for_late_ones_and_a_finished_layer_keeps() -> None:
    rig = Rig(2, KINDS, EXPERTS, timeout_ms=200).open_all()

    def call(rank: int) -> object:
        if rank == 0:
            time.sleep(0.8)  # late, not stuck
        rig.transports[rank].join(1, 0, EXPERTS)
        if rank == 0:
            rig.transports[0].run(1, 0, EXPERTS, pattern_writer(1))
        else:
            time.sleep(0.8)  # collects it late
        return rig.transports[rank].wait(1)

    assert all(isinstance(result, dict) for result in rig.each(call))
    rig.close()


def test_trap_07_who_waits_in_vain_says_for_whom() -> None:
    rig = Rig(2, KINDS, EXPERTS, join_timeout_ms=200).open_all()
    with pytest.raises(errors.LayerTimeout, match="in join for rank 0.*publish epoch 1.*alive") as caught:
        rig.transports[1].join(1, 0, EXPERTS)
    assert caught.value.rank == 0
    rig.close()


@pytest.mark.parametrize("closer", [0, 1])
def test_trap_09_the_next_call_after_a_close_raises_at_once(closer: int) -> None:
    rig = Rig(2, KINDS, EXPERTS).open_all()
    rig.load_checked(1, 0, EXPERTS, pattern_writer(1))
    rig.transports[closer].close()
    other = rig.transports[1 - closer]
    started = time.monotonic()
    with pytest.raises(errors.PeerClosed, match=f"rank {closer} .*closed") as caught:
        other.join(2, 0, EXPERTS)
        other.run(2, 0, EXPERTS, pattern_writer(2))
    assert caught.value.rank == closer
    assert time.monotonic() - started < 2
    rig.close()


def test_trap_22_a_claimed_poison_without_words_is_still_a_failure() -> None:
    rig = Rig(2, KINDS, EXPERTS).open_all()
    rig.load_checked(1, 0, EXPERTS, pattern_writer(1))
    rig.control.array[64:72] = 255  # claimed; then its process died
    with pytest.raises(errors.ProtocolError, match="could not say why"):
        rig.transports[1].join(2, 0, EXPERTS)
    rig.close()


def test_trap_30_figures_of_a_failed_layer_come_with_the_exception(folder: Path) -> None:
    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2)
        group.barrier("ready")
        try:
            transport.load(1, 2, EXPERTS, lambda expert, views: 1 / (4 - expert))
        except errors.WriterError as error:
            return error.rank, error.layer, error.expert, dict(error.statistics)
        return None

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    for rank, child in enumerate(children):
        who, layer, expert, figures = child.result()  # type: ignore[misc]
        assert (who, layer, expert) == (0, 2, 4)
        assert figures["rank"] == rank and figures["epoch"] == 1


def test_case_08_a_stopped_rank_gives_one_clear_failure_and_writes_nothing_late(folder: Path) -> None:
    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2, timeout=0.5, join_timeout=0.5)
        load(transport, 1)
        group.barrier("ready")
        if rank == 1:
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            load(transport, 2)
        except errors.LayerTimeout as error:
            first = str(error), error.rank
        else:
            return "no failure"
        with pytest.raises(errors.LayerTimeout) as again:
            transport.join(3, 2, EXPERTS)
        assert str(again.value) == first[0]  # the same one, not a stream of them
        transport.close()
        return first

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    text, who = children[0].result()  # type: ignore[misc]
    assert who == 1 and "is stopped" in text
    children[1].signal(signal.SIGCONT)
    assert children[1].result() == (text, 1)


def test_case_08_without_limits_a_stopped_rank_is_waited_for(folder: Path) -> None:
    """The switch for debugging: None is no limit."""

    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2, timeout=None, join_timeout=None)
        group.barrier("ready")
        if rank == 1:
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGSTOP)
        load(transport, 1)
        return "loaded"

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    eventually(lambda: children[1].state() == "T")
    time.sleep(0.7)
    children[1].signal(signal.SIGCONT)
    assert [child.result() for child in children] == ["loaded"] * 2


def affinities() -> dict[int, set[int]]:
    return {int(task): os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")}


def test_case_17_the_callers_affinity_is_never_touched(folder: Path) -> None:
    code = f"""
import os
before = os.sched_getaffinity(0)
import layercast
from layercast import Group, Transport, errors
cpu = min(before)
group = Group("affinity", 0, 1, runtime_dir={str(folder)!r})
transport = Transport(group, (100,), num_experts=2, cpus=[cpu])
transport.load(1, 0, 2, lambda expert, views: None)  # by now its threads have placed themselves
own = {{int(t) for t in os.listdir("/proc/self/task")}} - {{os.getpid()}}
bound = [t for t in own if open(f"/proc/self/task/{{t}}/comm").read().startswith("layercast-copy")]
assert bound and all(os.sched_getaffinity(t) == {{cpu}} for t in bound), own
assert os.sched_getaffinity(0) == before
assert transport.describe()["cpus"] == [cpu]
transport.close()
assert os.sched_getaffinity(0) == before
try:
    Transport(group, (100,), num_experts=2, cpus=[4095])
except errors.ConfigError as error:
    print(error)
assert os.sched_getaffinity(0) == before
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "got [4095]" in done.stdout


def test_case_18_one_cpu_is_enough(folder: Path) -> None:
    code = f"""
import sys
from layercast import Group, Transport, _native
from layercast.writers import pattern_writer
group = Group("one", 0, 1, runtime_dir={str(folder)!r})
with Transport(group, (5000, 8), num_experts=6, piece_bytes=1000) as transport:
    for epoch in range(1, 200):
        transport.load(epoch, 2, 6, pattern_writer(epoch))
        wrong, _ = _native.count_wrong_pattern(epoch, 2, 0, 6, [5000, 8], transport.destinations)
        assert wrong == 0
    print(transport.describe()["writer_threads"])
"""
    cpu = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", cpu, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("device", ["host", "link:1GB/s,slow=5ms"])
def test_case_23_a_forked_childs_calls_raise_and_its_exit_changes_nothing(folder: Path, device: str) -> None:
    """Also while a layer is under way, and also by the interpreter's ordinary exit."""

    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2, device=device)
        load(transport, 1)
        transport.join(2, 2, EXPERTS)
        texts = []
        for exits in (os._exit, sys.exit):
            child = Child(lambda exits=exits: _all_calls(transport, group, exits))
            texts.append(child.result())
        if rank == 0:
            transport.run(2, 2, EXPERTS, pattern_writer(2))
        transport.wait(2)
        load(transport, 3)
        transport.close()
        group.close()
        return texts

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    for child in children:
        for calls in child.result(60):  # type: ignore[attr-defined]
            assert len(calls) == 5 and all(f"pid {child.pid}" in text for text in calls), calls


def _all_calls(transport: Transport, group: Group, exits: object) -> list[str]:
    raised = []
    calls = (
        lambda: transport.join(3, 2, EXPERTS),
        lambda: transport.run(2, 2, EXPERTS, pattern_writer(2)),
        lambda: transport.wait(2),
        lambda: transport.cancel(2),
        lambda: group.barrier("not mine"),
    )
    for call in calls:
        try:
            call()
        except errors.ForkError as error:
            raised.append(str(error))
    transport.close()
    group.close()
    return raised


@pytest.mark.parametrize("call", ["join", "wait"])
def test_case_24_ctrl_c_ends_a_rank_that_waits_and_tells_its_peers(folder: Path, call: str) -> None:
    def body(rank: int) -> object:
        group, transport = opened(folder, rank, 2, timeout=60, join_timeout=60)
        group.barrier("ready")
        if rank == 1:
            ticks: list[float] = []
            stop = threading.Event()

            def tick() -> None:
                while not stop.wait(0.01):
                    ticks.append(time.monotonic())

            threading.Thread(target=tick, daemon=True).start()
            threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                transport.join(1, 2, EXPERTS)
                transport.wait(1)
            except KeyboardInterrupt:
                stop.set()
                transport.close()
                return time.monotonic(), len(ticks)
        try:
            if call == "wait":
                transport.join(1, 2, EXPERTS)
                transport.run(1, 2, EXPERTS, lambda expert, views: time.sleep(0.2))
            else:
                time.sleep(1)  # rank 1 has left meanwhile
                transport.join(1, 2, EXPERTS)
        except errors.GroupError as error:
            return error.rank
        return None

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    ended, ticks = children[1].result()  # type: ignore[misc]
    assert ticks > 10  # other Python threads ran meanwhile
    assert children[0].result() == 1
    assert ended > 0


def test_case_25_late_copies_and_a_hasty_producer() -> None:
    rig = Rig(2, KINDS, EXPERTS, slots=2, piece_bytes=4024, device=lambda: _native.link_device(0, slow_ns=20_000_000))
    rig.transports = [rig.open(rank, verify_every=1) for rank in range(2)]
    for epoch in (1, 2):
        started = time.monotonic()
        rig.load_checked(epoch, epoch, EXPERTS, pattern_writer(epoch))
        assert rig.wrong(epoch, epoch, EXPERTS) == [0, 0]
        assert time.monotonic() - started > 0.1  # the acknowledgement followed completion
    rig.close()


def test_the_last_reference_dropped_in_mid_layer_ends_it(folder: Path) -> None:
    """With a Python writer, without close: the others hear of it, nothing crashes, no thread is left."""
    group = Group("dropped", 0, 1, runtime_dir=folder)
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        transport = Transport(group, KINDS, num_experts=EXPERTS)
        transport.join(1, 2, EXPERTS)
        del transport
        gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    group.close()


@pytest.mark.parametrize("handled", [False, True])
def test_sigterm_ends_a_rank_that_waits_and_its_peer_is_told(folder: Path, handled: bool) -> None:
    """By the signal's own action, or by the rank's handler, which runs during the wait."""

    def terminated() -> None:
        if handled:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        group, transport = opened(folder, 1, 2)
        load(transport, 1)
        (folder / "waits").touch()
        transport.join(2, 2, EXPERTS)  # rank 0 does not come

    def peer() -> object:
        group, transport = opened(folder, 0, 2)
        load(transport, 1)
        eventually((folder / "sent").exists, 30)
        began = time.monotonic()
        with pytest.raises(errors.GroupError) as told:
            load(transport, 2)
        transport.close()
        group.close()
        return type(told.value).__name__, told.value.rank, told.value.pid, time.monotonic() - began

    rank, other = Child(terminated), Child(peer)
    eventually((folder / "waits").exists, 30)
    time.sleep(0.1)
    rank.signal(signal.SIGTERM)
    if handled:
        left = rank.result(10)
        assert isinstance(left, SystemExit) and left.code == 7, left
    else:
        rank.reap()
        assert os.WTERMSIG(rank.status or 0) == signal.SIGTERM
    (folder / "sent").touch()
    name, who, pid, seconds = other.result(30)  # type: ignore[misc]
    assert (name, who, pid) == ("PeerDied", 1, rank.pid) and seconds < 10
    for mark in ("waits", "sent"):
        (folder / mark).unlink()
    assert not list(folder.iterdir())


def test_interpreter_exit_without_close_is_clean(folder: Path) -> None:
    code = f"""
from layercast import Group, Transport
group = Group("exit", 0, 1, runtime_dir={str(folder)!r})
transport = Transport(group, (100,), num_experts=2)
transport.load(1, 0, 2, lambda expert, views: None)
transport.join(2, 0, 2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(folder.iterdir())


def test_a_thousand_transports_leave_nothing(folder: Path) -> None:
    with Group("many", 0, 1, runtime_dir=folder) as group:

        def once() -> None:
            with Transport(group, (64,), num_experts=1) as transport:
                transport.load(1, 0, 1, pattern_writer(1))

        for _ in range(20):
            once()
        before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        resident = int(np.fromfile("/proc/self/statm", sep=" ", dtype=np.int64)[1])
        for _ in range(1000):
            once()
        # Rank 0's own thread lets go of what was shared, a moment later.
        eventually(lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before)
        grown = int(np.fromfile("/proc/self/statm", sep=" ", dtype=np.int64)[1]) - resident
        assert grown * 4096 < 8 << 20
