"""Ranks in pid namespaces of their own, each pid 1 there, as containers are: no pid says anything to another rank."""

from __future__ import annotations

import functools
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]
TP = 3
BOUND_S = 2.0  # generous: the product's own is 100 ms


@functools.cache
def why_not() -> str:
    if shutil.which("unshare") is None:
        return "unshare is missing"
    done = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    return f"no pid namespace may be made here: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(autouse=True)
def namespaces_are_allowed() -> None:
    if why_not():
        pytest.skip(why_not())


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


class Rank:
    """A rank as pid 1 of a namespace. `proc`: whether it sees a /proc of its own, as in a container."""

    def __init__(self, rank: int, folder: Path, mode: str, proc: bool, init: bool = False) -> None:
        space = ["unshare", "--pid", "--fork", *(["--mount-proc"] if proc else [])]
        command = [sys.executable, "-m", "tests.protocol.namespaced", str(rank), str(TP), str(folder), mode]
        self.init = init  # pid 1 is a shell, which keeps the namespace and what the rank leaves there
        self.process = subprocess.Popen(
            [*space, *(["sh", "-c", f"{shlex.join(command)}; sleep 1000"] if init else command)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        self.hello = self.read()

    def read(self, timeout: float = 60) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert ready, "a rank hangs"
        line = self.process.stdout.readline()
        assert line, "a rank ended"
        return dict(json.loads(line))

    @property
    def pid(self) -> int:
        """Of the rank itself, as this process sees it."""
        return _child(_child(self.process.pid)) if self.init else _child(self.process.pid)

    def kill(self) -> float:
        now = time.monotonic()
        os.kill(self.pid, 9)
        return now

    def end(self) -> None:
        if self.process.poll() is None:
            try:
                os.kill(_child(self.process.pid), 9)  # pid 1, and with it the namespace
            except (IndexError, ProcessLookupError):
                self.process.kill()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize(
    ("victim", "mode", "proc"), [(0, "busy", True), (2, "busy", True), (0, "idle", True), (2, "idle", False)]
)
def test_a_death_is_noticed_and_named_and_survived(tmp_path: Path, victim: int, mode: str, proc: bool) -> None:
    os.chmod(tmp_path, 0o700)
    ranks = {rank: Rank(rank, tmp_path, mode, proc) for rank in range(TP)}
    everybody = list(ranks.values())
    try:
        assert {rank.hello["pid"] for rank in everybody} == {1}
        assert len({rank.hello["space"] for rank in everybody}) == TP
        # The second to die is a survivor of the first death, then the one that took a dead one's place.
        for dying in (victim, 1, victim):
            for rank in ranks.values():
                said = rank.read()
                assert said.get("wrong") == 0, said
            killed = ranks[dying].kill()
            for rank in sorted(set(ranks) - {dying}):
                heard = ranks[rank].read()
                assert (heard.get("error"), heard.get("rank"), heard.get("pid")) == ("PeerDied", dying, 1), heard
                assert heard["at"] - killed < BOUND_S
            eventually(lambda dying=dying: ranks[dying].process.poll() is not None, 20)
            ranks[dying] = Rank(dying, tmp_path, mode, proc)
            everybody.append(ranks[dying])
    finally:
        for rank in everybody:
            rank.end()


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_is_noticed_though_the_ranks_own_children_live_on(tmp_path: Path, victim: int) -> None:
    """They have inherited its sockets, and no other rank has a descriptor of its process."""
    os.chmod(tmp_path, 0o700)
    ranks = {rank: Rank(rank, tmp_path, "children", True, init=True) for rank in range(TP)}
    try:
        for rank in ranks.values():
            assert rank.read().get("wrong") == 0
        killed = ranks[victim].kill()
        for rank in sorted(set(ranks) - {victim}):
            heard = ranks[rank].read(20)
            assert (heard.get("error"), heard.get("rank")) == ("PeerDied", victim), heard
            assert heard["at"] - killed < BOUND_S
    finally:
        for rank in ranks.values():
            rank.end()
