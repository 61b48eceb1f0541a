"""A rank that is stopped, not dead, is replaced; then it is resumed: nothing that it still does reaches the group."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.processes import Child, eventually

from layercast import Group, Transport, _native, errors
from layercast.writers import pattern_writer

KINDS = (5000, 64)
EXPERTS = 8
TP = 3


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def group(self, rank: int, take_over: bool = False) -> Group:
        return Group("zombies", rank, TP, runtime_dir=self.folder, timeout=30, take_over=take_over)

    def transport(self, group: Group) -> Transport:
        # Its limit is what finds a stopped rank.
        return Transport(group, KINDS, num_experts=EXPERTS, piece_bytes=2000, join_timeout=30, timeout=0.5)

    def tell(self, what: str) -> None:
        (self.folder / what).touch()

    def hear(self, what: str) -> None:
        eventually((self.folder / what).exists, 30)


@pytest.fixture
def world(tmp_path: Path) -> World:
    os.chmod(tmp_path, 0o700)
    return World(tmp_path)


def load(transport: Transport, epoch: int, seed: int) -> int:
    transport.load(epoch, 3, EXPERTS, pattern_writer(seed))
    return _native.count_wrong_pattern(seed, 3, transport.rank, EXPERTS, list(KINDS), transport.destinations)[0]


def after_recovery(world: World, group: Group, transport: Transport, wrong: int) -> int:
    """Layers before, while and after the zombie is awake."""
    wrong += load(transport, 1, 21)
    group.barrier("the zombie may wake")
    if group.rank == 1:
        world.tell("wake")
    for epoch in range(2, 200):
        wrong += load(transport, epoch, epoch)
        time.sleep(0.002)
    group.barrier("the zombie has spoken")
    return wrong


def survivor(world: World, rank: int) -> int:
    with world.group(rank) as group, world.transport(group) as transport:
        wrong = load(transport, 1, 20)
        with pytest.raises(errors.GroupError):
            for epoch in range(2, 1000):
                wrong += load(transport, epoch, 20)
        world.tell(f"{rank} has heard")
        transport.recover(timeout=30)
        return after_recovery(world, group, transport, wrong)


def newcomer(world: World, rank: int) -> int:
    with world.group(rank, take_over=True) as group, world.transport(group) as transport:
        return after_recovery(world, group, transport, 0)


def zombie(world: World, rank: int, where: str) -> list[str]:
    """Stops in mid-layer, or between layers; afterwards tries everything."""
    with world.group(rank) as group, world.transport(group) as transport:
        load(transport, 1, 20)

        def stop(expert: int, views: object) -> None:
            if expert == 3:
                os.kill(os.getpid(), signal.SIGSTOP)

        seen: list[str] = []

        def attempt(call: object) -> None:
            try:
                call()  # type: ignore[operator]
                seen.append("nothing")
            except errors.LayercastError as error:
                seen.append(type(error).__name__)

        if where == "joined":
            transport.join(2, 3, EXPERTS)
        if where == "joined" and rank == 0:
            attempt(lambda: transport.run(2, 3, EXPERTS, stop))
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        attempt(lambda: transport.wait(2) if where == "joined" else transport.join(2, 3, EXPERTS))
        attempt(lambda: transport.join(3, 3, EXPERTS))
        attempt(lambda: group.barrier("the zombie has spoken", 20) if rank else None)
        attempt(lambda: transport.recover(timeout=20))
        attempt(lambda: transport.recover(timeout=20))
        return seen


@pytest.mark.parametrize("where", ["joined", "idle"])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_is_replaced_and_refused_when_it_wakes(world: World, victim: int, where: str) -> None:
    undead = Child(lambda: zombie(world, victim, where))
    living = {rank: Child(lambda rank=rank: survivor(world, rank)) for rank in range(TP) if rank != victim}
    eventually(lambda: undead.state() == "T", 30)
    if where == "joined":  # when idle, nothing is wrong until somebody takes its place
        for rank in living:
            world.hear(f"{rank} has heard")
    fresh = Child(lambda: newcomer(world, victim))
    try:
        world.hear("wake")
        undead.signal(signal.SIGCONT)
        seen = undead.result(60)
        assert isinstance(seen, list) and "nothing" not in seen[:2], seen
        assert seen[-2:] == ["Superseded", "Superseded"], seen
        assert [child.result(60) for child in (*living.values(), fresh)] == [0, 0, 0]
    finally:
        for child in (undead, fresh, *living.values()):
            if child.status is None:
                child.kill()


def test_who_does_not_take_over_is_refused_while_the_stopped_one_lives(world: World) -> None:
    with world.group(0) as first:

        def body() -> None:
            with world.group(1):
                os.kill(os.getpid(), signal.SIGSTOP)

        stopped = Child(body)
        eventually(lambda: stopped.state() == "T", 30)
        with pytest.raises(errors.ConfigError, match=f"rank 1 of group 'zombies' is taken by pid {stopped.pid}"):
            world.group(1)
        with world.group(1, take_over=True) as second:
            assert second.replaces == stopped.pid
            assert first.peers[1] == os.getpid()
        stopped.kill()
