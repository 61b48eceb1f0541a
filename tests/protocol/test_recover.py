"""A rank dies, the others live on: a new process takes its place and the group goes on in a new generation."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.processes import Child, eventually
from tests.support.recovery import EXPERTS, TP, World, load

from layercast import Arena, Group, SyntheticSource, Transport, _native, errors
from layercast.geometry import SHAPES, Shape
from layercast.session import Session
from layercast.writers import pattern_writer


@pytest.fixture
def world(tmp_path: Path) -> World:
    os.chmod(tmp_path, 0o700)
    return World(tmp_path, "recovery")


def die_in_writer(expert: int, views: object) -> None:
    if expert == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def survivor(world: World, rank: int, victim: int, step: str) -> object:
    with world.group(rank) as group, world.transport(group) as transport:
        wrong = load(transport, 1, 10)
        before = transport.destinations
        try:
            if step == "idle":
                group.barrier("everybody has loaded")
            if rank == victim and step == "idle":
                os.kill(os.getpid(), signal.SIGKILL)
            transport.join(2, 3, EXPERTS)
            if rank == victim and step == "joined":
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                transport.run(2, 3, EXPERTS, die_in_writer if victim == 0 else pattern_writer(1))
            if rank == victim and step == "waiting":
                os.kill(os.getpid(), signal.SIGKILL)
            transport.wait(2)
            transport.join(3, 3, EXPERTS)
        except errors.PeerDied as error:
            died = error.rank, error.pid
        transport.recover(timeout=30)
        wrong += load(transport, 1, 11)
        wrong += load(transport, 2, 12)
        assert transport.destinations == before
        return died, wrong


def newcomer(world: World, rank: int) -> object:
    with world.group(rank) as group, world.transport(group) as transport:
        return load(transport, 1, 11) + load(transport, 2, 12)


@pytest.mark.parametrize("step", ["idle", "joined", "waiting"])
@pytest.mark.parametrize("victim", [0, 2])
def test_the_survivors_and_a_new_process_go_on(world: World, victim: int, step: str) -> None:
    first = {rank: Child(lambda rank=rank: survivor(world, rank, victim, step)) for rank in range(TP)}
    victims_pid = first[victim].pid
    first[victim].reap()
    assert os.WTERMSIG(first[victim].status or 0) == signal.SIGKILL
    replacement = Child(lambda: newcomer(world, victim))
    for rank in sorted(set(range(TP)) - {victim}):
        result = first[rank].result(60)
        assert result == ((victim, victims_pid), 0), (rank, result)
    assert replacement.result(60) == 0


@pytest.mark.parametrize("victim", [0, 2])
def test_trap_19_a_replaced_rank_stalls_nobody_and_epochs_are_the_groups(world: World, victim: int) -> None:
    """It comes in mid-layer, long before the others recover: they hear of the death at once all the same, and it is
    given the new generation's epochs, not the dead rank's."""

    def old(rank: int) -> object:
        with world.group(rank) as group, world.transport(group) as transport:
            wrong = sum(load(transport, epoch, 10) for epoch in (1, 2, 3))
            transport.join(4, 3, EXPERTS)
            if rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(errors.PeerDied) as died:
                if rank == 0:
                    transport.run(4, 3, EXPERTS, pattern_writer(1))
                transport.wait(4)
            heard = time.monotonic() - began
            time.sleep(0.5)  # the newcomer is there, and waits for the others
            transport.recover(timeout=30)
            assert transport.last_epoch_joined == 0
            return died.value.rank, heard < 10, wrong + load(transport, 1, 11)

    first = {rank: Child(lambda rank=rank: old(rank)) for rank in range(TP)}
    first[victim].reap()
    replacement = Child(lambda: newcomer_of_one_layer(world, victim))
    for rank in sorted(set(range(TP)) - {victim}):
        assert first[rank].result(60) == (victim, True, 0)
    assert replacement.result(60) == (1, 0)


def test_a_newcomer_goes_on_where_rank_0_dies_as_well(world: World) -> None:
    """It waits for rank 0 to recover; rank 0 dies instead, and whoever is rank 0 next knows nothing of it."""

    def old(rank: int) -> object:
        with world.group(rank) as group, world.transport(group) as transport:
            wrong = load(transport, 1, 10)
            group.barrier("everybody has loaded")
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0:
                first_1 = group.peers[1]
                eventually(lambda: group.peers.get(1, first_1) != first_1)
                time.sleep(0.3)  # the newcomer waits inside Transport()
                os.kill(os.getpid(), signal.SIGKILL)
            with pytest.raises(errors.PeerDied):
                load(transport, 2, 10)
            transport.recover(timeout=30)
            return wrong + load(transport, 1, 11) + load(transport, 2, 12)

    first = {rank: Child(lambda rank=rank: old(rank)) for rank in range(TP)}
    first[1].reap()
    newcomers = [Child(lambda: newcomer(world, 1))]
    first[0].reap()
    newcomers.append(Child(lambda: newcomer(world, 0)))
    assert [child.result(60) for child in (first[2], *newcomers)] == [0, 0, 0]


def fails_once(attach: Callable[[Session], _native.Transport]) -> Callable[[Session], _native.Transport]:
    left = [errors.ResourceError("no room")]

    def attach_or_fail(session: Session) -> _native.Transport:
        if left:
            raise left.pop()
        return attach(session)

    return attach_or_fail


def test_where_rank_0_needs_two_tries_the_others_notice_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep their slots, so rank 0 must keep its own as well."""

    def body(rank: int) -> object:
        with world.group(rank) as group, world.transport(group) as transport:
            group.barrier("all are there")
            with pytest.raises(errors.WriterError):
                transport.load(1, 3, EXPERTS, lambda expert, views: 1 / 0)
            if rank == 0:
                monkeypatch.setattr(Session, "_open", fails_once(Session._open))
                with pytest.raises(errors.ResourceError, match="no room"):
                    transport.recover()
                time.sleep(0.2)  # the others ask
            transport.recover(timeout=30)
            return load(transport, 1, 11) + load(transport, 2, 12)

    children = [Child(lambda rank=rank: body(rank)) for rank in range(TP)]
    assert [child.result(60) for child in children] == [0] * TP


def test_where_rank_0_cannot_start_the_others_hear_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(rank: int) -> object:
        with world.group(rank) as group:
            if rank == 0:
                monkeypatch.setattr(Session, "_open", fails_once(Session._open))
                with pytest.raises(errors.ResourceError, match="no room"):
                    world.transport(group)
            else:
                with pytest.raises(errors.PeerClosed, match="transport-1/control"):
                    world.transport(group)
            group.barrier("all have heard")
            with world.transport(group) as transport:
                return load(transport, 1, 11)

    children = [Child(lambda rank=rank: body(rank)) for rank in range(TP)]
    assert [child.result(20) for child in children] == [0] * TP


def newcomer_of_one_layer(world: World, rank: int) -> object:
    with world.group(rank) as group, world.transport(group) as transport:
        wrong = load(transport, 1, 11)
        return transport.last_epoch, wrong


def test_a_layer_that_failed_without_a_death_can_be_retried(world: World) -> None:
    def body(rank: int) -> object:
        with world.group(rank) as group, world.transport(group) as transport:
            group.barrier("all are there")  # a failure before that is the newcomer's as well
            for _ in range(5):
                with pytest.raises(errors.WriterError):
                    transport.load(transport.last_epoch_joined + 1, 3, EXPERTS, lambda expert, views: 1 / (3 - expert))
                assert transport.failed
                transport.recover()
                assert load(transport, 1, 7) == 0
                fds = len(os.listdir("/proc/self/fd"))
            return fds

    children = [Child(lambda rank=rank: body(rank)) for rank in range(TP)]
    for child in children:
        assert isinstance(child.result(60), int)


def test_nothing_grows_over_many_recoveries(world: World) -> None:
    def body(rank: int) -> object:
        seen = []
        with world.group(rank) as group, world.transport(group) as transport:
            group.barrier("all are there")
            for cycle in range(60):
                try:
                    transport.load(1, 3, EXPERTS, lambda expert, views: 1 / (3 - expert))
                except errors.WriterError:
                    transport.recover()
                group.barrier(f"cycle {cycle}")
                if cycle >= 10:
                    seen.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        # A descriptor on its way from rank 0 may be there or not.
        return min(fds for fds, _ in seen[-10:]) - min(fds for fds, _ in seen[:10]), max(t for _, t in seen[-10:])

    for result in [child.result(60) for child in [Child(lambda rank=rank: body(rank)) for rank in range(TP)]]:
        fds, threads = result  # type: ignore[misc]
        assert fds <= 3 and threads <= 5, result  # a pidfd more or less


def test_who_starts_into_a_failed_group_hears_of_it(world: World) -> None:
    def rank_0() -> object:
        with world.group(0) as group, world.transport(group) as transport:
            transport.join(1, 3, EXPERTS)
            with pytest.raises(errors.WriterError):
                transport.run(1, 3, EXPERTS, lambda expert, views: 1 / 0)
            group.barrier("failed")
            group.barrier("heard")
            return "raised"

    def late() -> object:
        with world.group(1) as group:
            group.barrier("failed")
            with pytest.raises(errors.WriterError, match="division by zero"):
                world.transport(group)
            group.barrier("heard")
            return "raised"

    world.tp = 2
    children = [Child(rank_0), Child(late)]
    assert [child.result(30) for child in children] == ["raised", "raised"]


def test_recover_needs_a_failure(world: World) -> None:
    with Group("alone", 0, 1, runtime_dir=world.folder) as group, world.transport(group) as transport:
        with pytest.raises(errors.StateError, match="nothing has failed"):
            transport.recover()
        assert load(transport, 1, 1) == 0


def test_a_survivor_does_not_wait_for_ever(world: World) -> None:
    """Nobody replaces rank 0: the survivor's own limit ends it, and a later try can still succeed."""

    def rank_1() -> object:
        with world.group(1) as group, world.transport(group) as transport:
            with pytest.raises(errors.PeerDied):
                group.barrier("both are there")
                transport.load(1, 3, EXPERTS)
            for _ in range(2):  # a second try is one
                with pytest.raises(errors.JoinTimeout, match="rank 0"):
                    transport.recover(timeout=0.3)
                assert not transport.closed
                with pytest.raises(errors.StateError, match="did not succeed"):
                    transport.join(1, 3, EXPERTS)
            transport.close()
            with pytest.raises(errors.StateError, match="closed"):
                transport.recover(timeout=0.3)
            return "ended"

    def rank_0() -> object:
        group = world.group(0)
        transport = world.transport(group)
        group.barrier("both are there")
        transport.join(1, 3, EXPERTS)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    world.tp = 2
    child, victim = Child(rank_1), Child(rank_0)
    victim.reap()
    assert child.result(30) == "ended"


def test_arenas_survive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("tiny", 256, 384, EXPERTS, range(2))
    monkeypatch.setattr("layercast.sources.SHAPES", {**SHAPES, "tiny": shape})
    source = SyntheticSource("tiny")

    def wrong(transport: Transport, epoch: int) -> int:
        transport.load(epoch, 1, EXPERTS)
        return len(source.wrong_experts(1, transport.rank, TP, transport.host_views()))

    def body(rank: int, fresh: bool) -> object:
        with world.group(rank) as group, Arena(source, rank, TP) as arena:
            before = arena.addresses(1)
            with Transport(group, source.layout(TP), num_experts=EXPERTS, arena=arena) as transport:
                if not fresh:
                    assert wrong(transport, 1) == 0
                    if rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    with pytest.raises(errors.PeerDied):
                        transport.load(2, 1, EXPERTS)
                    transport.recover()
                assert arena.addresses(1) == before
                return wrong(transport, 1)

    first = {rank: Child(lambda rank=rank: body(rank, False)) for rank in range(TP)}
    first[1].reap()
    fresh = Child(lambda: body(1, True))
    assert [first[0].result(60), first[2].result(60), fresh.result(60)] == [0, 0, 0]
