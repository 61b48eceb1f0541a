"""Ranks started as processes of this one: their results, the first failure, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.protocol import launched
from tests.support.processes import eventually

from layercast import errors, launch
from layercast.launch import RankFailed

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run"
    monkeypatch.setenv("LAYERCAST_RUNTIME_DIR", str(path))
    return path


def test_results_come_by_rank(folder: Path) -> None:
    assert launch(launched.square, 3, args=(1,)) == [(0, 8), (1, 8), (2, 8)]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("culprit", [0, 2])
def test_case_06_the_first_failure_wins_with_its_ranks_traceback(folder: Path, culprit: int) -> None:
    started = time.monotonic()
    with pytest.raises(RankFailed, match="the culprit's own words") as caught:
        launch(launched.fail, 3, args=(culprit,))
    assert caught.value.rank == culprit
    assert isinstance(caught.value.__cause__, KeyError)
    assert "in fail\n" in caught.value.traceback
    assert time.monotonic() - started < 20
    assert not list(folder.iterdir())


def test_a_killed_rank_is_named_and_not_those_who_noticed(folder: Path) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 \(pid \d+\) was killed by SIGKILL") as caught:
        launch(launched.kill_itself, 3, args=(1,))
    assert (caught.value.rank, caught.value.exitcode) == (1, -signal.SIGKILL)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_leaves_is_a_failure(status: int) -> None:
    with pytest.raises(RankFailed, match=rf"rank 1 \(pid \d+\) left with SystemExit\({status}\)") as caught:
        launch(launched.leave, 2, args=(status,))
    assert (caught.value.rank, caught.value.exitcode) == (1, status)


def test_a_failure_that_cannot_travel_still_shows_its_text() -> None:
    with pytest.raises(RankFailed, match="only its text travels") as caught:
        launch(launched.deep, 1)
    assert caught.value.__cause__ is None


def test_a_result_that_cannot_travel_is_a_failure() -> None:
    with pytest.raises(RankFailed, match="pickle"):
        launch(launched.unpicklable, 1)


def test_what_cannot_be_started_is_refused_before() -> None:
    with pytest.raises(errors.ConfigError, match="cannot be sent to another process"):
        launch(lambda group: None, 2)
    with pytest.raises(errors.ConfigError, match=r"args\[1\]: <.*lock.* cannot be sent to another process"):
        launch(launched.square, 2, args=(1, threading.Lock()))
    with pytest.raises(errors.ConfigError, match="at least 1 rank"):
        launch(launched.square, 0)
    with pytest.raises(errors.ConfigError, match="of 65 characters: 1 to 64 letters"):
        launch(launched.square, 1, name="x" * 65)
    with pytest.raises(errors.ConfigError, match="group name '../up': 1 to 64 letters"):
        launch(launched.square, 1, name="../up")


@pytest.mark.parametrize("culprit", [0, 2])
def test_a_failure_that_a_caller_wrapped_is_still_known_as_secondary(culprit: int) -> None:
    with pytest.raises(RankFailed, match="the culprit's own words") as caught:
        launch(launched.wrap, 3, args=(culprit,))
    assert caught.value.rank == culprit


def test_a_ranks_own_child_that_lives_on_holds_nobody_up() -> None:
    started = time.monotonic()
    orphans = launch(launched.leave_a_child, 2, args=(60,))
    with pytest.raises(RankFailed, match="was killed by SIGKILL"):
        launch(launched.leave_a_child_and_die, 1, args=(30,))
    assert time.monotonic() - started < 25
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)


def test_the_time_limit_names_who_still_ran() -> None:
    with pytest.raises(errors.LaunchError, match=r"ranks \[0, 1\] of 2 still ran after 1\.5 s"):
        launch(launched.sleep, 2, args=(60,), timeout=1.5)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def start_sleepers() -> tuple[subprocess.Popen[str], list[int]]:
    code = "from layercast import launch; from tests.protocol import launched; launch(launched.sleep, 2, args=(60,))"
    parent = subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    return parent, [int(parent.stdout.readline()) for _ in range(2)]


def test_ctrl_c_ends_all_ranks(folder: Path) -> None:
    parent, ranks = start_sleepers()
    parent.send_signal(signal.SIGINT)  # the parent's alone: the ranks hear it from their parent
    _, said = parent.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    assert not any(alive(pid) for pid in ranks)
    assert not list(folder.iterdir())


def test_case_07_ranks_end_when_their_parent_is_killed(folder: Path) -> None:
    parent, ranks = start_sleepers()
    parent.kill()
    eventually(lambda: not any(alive(pid) for pid in ranks), 10)
    parent.wait()
    assert parent.stdout is not None and parent.stderr is not None
    parent.stdout.close()
    parent.stderr.close()
    assert not list(folder.iterdir())


def test_many_launches_leave_nothing(folder: Path) -> None:
    launch(launched.square, 2, args=(0,))
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        launch(launched.square, 2, args=(0,))
    assert len(os.listdir("/proc/self/fd")) == fds
    assert not list(folder.iterdir())
