"""Ranks that find each other by name: who may come, who is refused, and who hears of whose end."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.processes import Child, eventually

from layercast import Group, errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


def group(folder: Path, rank: int, tp: int = 2, *, timeout: float = 20, name: str = "g") -> Group:
    return Group(name, rank, tp, runtime_dir=folder, timeout=timeout)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_ranks_start_in_any_order(folder: Path, order: tuple[int, ...]) -> None:
    def body(rank: int) -> object:
        with group(folder, rank, 3) as mine:
            return mine.gather("who", os.getpid())

    children = {}
    for rank in order:
        children[rank] = Child(lambda rank=rank: body(rank))
        time.sleep(0.05)
    pids = [children[rank].pid for rank in range(3)]
    assert [children[rank].result() for rank in range(3)] == [pids] * 3
    assert not list(folder.iterdir())


def test_trap_17_the_second_process_of_a_rank_is_refused(folder: Path) -> None:
    with group(folder, 0) as first:

        def rank_1() -> object:
            with group(folder, 1) as mine:
                mine.barrier("end")
            return None

        child = Child(rank_1)
        eventually(lambda: first.peers.get(1) == child.pid)
        with pytest.raises(errors.ConfigError, match=f"rank 1 of group 'g' is taken by pid {child.pid}"):
            group(folder, 1)
        with pytest.raises(errors.ConfigError, match=f"has a rank 0 already: pid {os.getpid()}"):
            group(folder, 0)
        assert [refusal.rank for refusal in first.refusals] == [1]
        first.barrier("end")
        assert child.result() is None


def test_another_tp_is_refused_with_both_values(folder: Path) -> None:
    with (
        group(folder, 0, 2),
        pytest.raises(errors.AgreementError, match=r"started with tp=4, rank 0 \(pid \d+\) of group 'g' has tp=2"),
    ):
        group(folder, 1, 4)


def test_shared_memory_that_ranks_see_differently_is_refused(folder: Path) -> None:
    with group(folder, 0) as first, group(folder, 1) as second:
        with first.share("layer", 4096, agree={"slots": 4, "kinds": [1, 2]}):
            with pytest.raises(errors.AgreementError, match=r"slots is 2 on rank 1, 4 on rank 0"):
                second.share("layer", 4096, agree={"slots": 2, "kinds": [1, 2]})
            with pytest.raises(errors.AgreementError, match=r"nbytes is 8192 on rank 1, 4096 on rank 0"):
                second.share("layer", 8192, agree={"slots": 4, "kinds": [1, 2]})
            with second.share("layer", 4096, agree={"slots": 4, "kinds": [1, 2]}) as memory:
                assert len(memory.view) == 4096
        first.unshare("layer")  # waits for nothing
        first.share("another", 1).close()  # after it in rank 0's queue
        with pytest.raises(errors.PeerClosed, match="has closed 'layer' already"):
            second.share("layer", 4096, agree={"slots": 4, "kinds": [1, 2]})


def test_case_02_kill_all_ranks_and_start_again_twenty_times(folder: Path) -> None:
    def body(rank: int) -> object:
        mine = group(folder, rank)
        memory = mine.share("m", 1 << 20)
        memory.view[rank] = 1
        mine.barrier("working")
        (folder / f"ready-{rank}").touch()
        time.sleep(60)
        return None

    before = set(os.listdir("/dev/shm"))
    fds = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
        eventually(lambda: all((folder / f"ready-{rank}").exists() for rank in range(2)), 20)
        for rank, child in enumerate(children):
            child.kill()
            os.close(child.reader)
            (folder / f"ready-{rank}").unlink()
        assert [path.name for path in folder.iterdir()] == ["g.layercast"]  # one dead socket, taken over by the next
    assert set(os.listdir("/dev/shm")) <= before
    assert len(os.listdir("/proc/self/fd")) == fds
    with group(folder, 0, 1):
        pass
    assert not list(folder.iterdir())


def test_dead_sockets_of_other_groups_are_swept_and_live_ones_stay(folder: Path) -> None:
    def body() -> object:
        mine = group(folder, 0, 1, name="dead")
        os.kill(os.getpid(), signal.SIGKILL)
        return mine

    Child(body).reap()
    assert (folder / "dead.layercast").exists()
    with group(folder, 0, 1, name="live"), group(folder, 0, 1, name="other"):
        assert sorted(path.name for path in folder.iterdir()) == ["live.layercast", "other.layercast"]


def test_nothing_is_swept_that_is_not_a_groups(folder: Path) -> None:
    """The run-time directory may hold what other programs left."""
    folder.mkdir(mode=0o700, exist_ok=True)
    others = ["db.sock", "notes.new", "notes.layercast", "notes.layercast-draft", "a b.layercast"]
    for name in others[1:4]:
        (folder / name).write_text("somebody's")
    for name in (others[0], others[4]):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / name))
    with group(folder, 0, 1, name="live"):
        assert sorted(path.name for path in folder.iterdir()) == sorted([*others, "live.layercast"])


def test_case_03_unrelated_processes_attach_and_leave_without_a_word(folder: Path) -> None:
    code = (
        "import sys; from layercast import Group; g = Group('g', int(sys.argv[1]), 3, runtime_dir=sys.argv[2]);"
        "m = g.share('m', 4096); m.view[int(sys.argv[1])] = 7; print(*m.view[:3], flush=True)"
    )

    def start(rank: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with group(folder, 0, 3) as first, first.share("m", 4096) as memory:
        out, err = start(1).communicate(timeout=30)
        assert (out, err) == ("0 7 0\n", "")
        eventually(lambda: 1 not in first.peers)
        out, err = start(2).communicate(timeout=30)
        assert (out, err) == ("0 7 7\n", "")
        assert bytes(memory.view[:3]) == b"\0\7\7"


def test_case_04_a_rank_waits_for_what_is_not_shared_yet_and_names_it(folder: Path) -> None:
    with group(folder, 0) as first, group(folder, 1) as second:
        with pytest.raises(errors.JoinTimeout, match=rf"rank 0 \(pid {os.getpid()}\) to share 'slots'"):
            second.share("slots", 4096, timeout=0.2)
        sharing = threading.Timer(0.2, lambda: first.share("slots", 4096))
        sharing.start()
        second.share("slots", 4096).close()
        sharing.join()


def test_case_05_who_has_not_come_is_named(folder: Path) -> None:
    with group(folder, 0, 3) as first, group(folder, 1, 3):
        words = rf"rank 1 \(pid {os.getpid()}\), rank 2 \(not started\) at 'start'"
        with pytest.raises(errors.JoinTimeout, match=words) as caught:
            first.barrier("start", timeout=0.2)
        assert caught.value.rank == 1
    with pytest.raises(errors.JoinTimeout, match="rank 0 to start"):
        group(folder, 1, timeout=0.2)


def test_ranks_at_different_meetings_all_hear_of_it(folder: Path) -> None:
    with group(folder, 0) as first, group(folder, 1) as second:
        errors_seen: list[BaseException] = []

        def meet(mine: Group, label: str) -> None:
            try:
                mine.barrier(label)
            except errors.AgreementError as error:
                errors_seen.append(error)

        threads = [threading.Thread(target=meet, args=pair) for pair in ((first, "one"), (second, "other"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert len(errors_seen) == 2
        assert all("'one'" in str(error) and "'other'" in str(error) for error in errors_seen)
        assert first.refusals == []


HELLO = {"op": "hello", "id": 1, "protocol": 1, "tp": 2, "pid": 1, "started": 1, "space": 1}


@pytest.mark.parametrize("how", ["dies", "closes"])
@pytest.mark.parametrize("victim", [0, 2])
def test_the_end_of_a_rank_ends_every_meeting(folder: Path, victim: int, how: str) -> None:
    def body(rank: int) -> object:
        mine = group(folder, rank, 3)
        try:
            mine.barrier("all are here")
            if rank == victim:
                if how == "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                mine.close()
                return None
            mine.barrier("never")
        except errors.GroupError as error:
            return time.monotonic(), type(error), error.rank, error.pid
        return None

    children = [Child(lambda rank=rank: body(rank)) for rank in range(3)]
    children[victim].reap()
    died = time.monotonic()
    expected = errors.PeerDied if how == "dies" else errors.PeerClosed
    for rank in sorted({0, 1, 2} - {victim}):
        when, kind, who, pid = children[rank].result()  # type: ignore[misc]
        assert (kind, who, pid) == (expected, victim, children[victim].pid)
        assert when - died < 2


def test_losses_are_told_once_to_everybody_who_asks(folder: Path) -> None:
    early: list[tuple[int, int]] = []
    late: list[tuple[int, int]] = []
    never: list[tuple[int, int]] = []
    with group(folder, 0) as first:
        first.on_peer_lost(lambda rank, pid: early.append((rank, pid)))
        forgotten = lambda rank, pid: never.append((rank, pid))  # noqa: E731
        first.on_peer_lost(forgotten)
        first.off_peer_lost(forgotten)

        def body() -> object:
            mine = group(folder, 1)
            os.kill(os.getpid(), signal.SIGKILL)
            return mine

        child = Child(body)
        child.reap()
        eventually(lambda: bool(early))
        first.on_peer_lost(lambda rank, pid: late.append((rank, pid)))
        assert early == late == [(1, child.pid)]
        assert never == []


def message(body: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(body) if length is None else length) + body


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0",
        message(b"", 2**31),
        message(b"", 65537),
        message(b"{not json"),
        message(b"[1, 2]"),
        message(b'"text"'),
        message(b"\xff\xfe\xfd"),
        message(b"[" * 60000),
        message(json.dumps({"op": "gather", "id": 1, "label": "x", "value": 1}).encode()),  # before hello
        message(json.dumps({"op": "hello", "id": "one"}).encode()),
        message(json.dumps({**HELLO, "rank": True}).encode()),
        message(json.dumps({"id": 1}).encode()),
        message(json.dumps({"op": "register", "id": 1, "tag": "t", "fd": 0}).encode()),
    ],
)
def test_what_is_not_the_protocol_costs_its_sender_the_connection_only(folder: Path, data: bytes) -> None:
    with group(folder, 0) as first, group(folder, 1) as second:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(folder / "g.layercast"))
            stranger.settimeout(20)
            stranger.sendall(data)
            assert stranger.recv(100) == b""
        thread = threading.Thread(target=first.barrier, args=("still well",))
        thread.start()
        second.barrier("still well")
        thread.join(20)


def test_connections_that_say_nothing_do_not_keep_ranks_out(folder: Path) -> None:
    with group(folder, 0) as first:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for stranger in silent:
            stranger.connect(str(folder / "g.layercast"))
        with group(folder, 1):
            assert first.peers.keys() == {0, 1}
        for stranger in silent:
            stranger.close()


def test_a_directory_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(errors.ConfigError, match="has mode 0755, at most 0700 is allowed"):
        group(folder, 0)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 65, "ä"])
def test_names_are_checked(folder: Path, name: str) -> None:
    with pytest.raises(errors.ConfigError, match="group name"):
        group(folder, 0, name=name)


@pytest.mark.parametrize(("rank", "tp"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_are_checked(folder: Path, rank: int, tp: int) -> None:
    with pytest.raises(errors.ConfigError, match="a rank from 0 to tp - 1"):
        group(folder, rank, tp)


def test_torchruns_environment_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERCAST_RUNTIME_DIR", str(folder))
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "7"}.items():
        monkeypatch.setenv(name, value)

    def body(rank: int) -> object:
        for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
            os.environ[name] = str(value)
        with Group.from_environment(timeout=20) as mine:
            return mine.gather("x", mine.rank)

    children = [Child(lambda rank=rank: body(rank)) for rank in range(2)]
    assert [child.result() for child in children] == [[0, 1]] * 2


def test_trap_25_a_forked_childs_group_is_inert(folder: Path) -> None:
    with group(folder, 0) as first, group(folder, 1) as second:

        def child() -> object:
            seen = []
            for call in (lambda: first.barrier("x"), lambda: second.share("x", 1), lambda: first.peers):
                try:
                    call()
                except errors.ForkError as error:
                    seen.append(str(error))
            first.close()
            second.close()
            return seen

        texts = Child(child).result()
        assert isinstance(texts, list) and len(texts) == 3
        assert all("create it after fork" in text for text in texts)
        thread = threading.Thread(target=first.barrier, args=("still well",))
        thread.start()
        second.barrier("still well")
        thread.join(20)


def test_two_hundred_groups_leave_nothing(folder: Path) -> None:
    def once() -> None:
        with group(folder, 0) as first, group(folder, 1) as second, first.share("m", 4096), second.share("m", 4096):
            pass

    once()
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(200):
        once()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert threading.active_count() == threads
