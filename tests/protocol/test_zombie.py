"""A rank that is stopped, not dead, is replaced; then it is resumed: nothing that it still does reaches the group."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from tests.support.processes import Child, eventually
from tests.support.recovery import EXPERTS, TP, World, load

from layercast import Group, Transport, errors


class Zombies(World):
    """They leave each other word in the folder."""

    def tell(self, what: str) -> None:
        (self.folder / what).touch()

    def hear(self, what: str, *speakers: Child) -> None:
        """`speakers`: who cannot say it any more once they have ended."""

        def heard() -> bool:
            if (self.folder / what).exists():
                return True
            for child in speakers:
                if select.select([child.reader], [], [], 0)[0]:
                    raise AssertionError(f"{what!r} was never said: {child.result(5)!r}")
            return False

        eventually(heard, 30)


@pytest.fixture
def world(tmp_path: Path) -> Zombies:
    os.chmod(tmp_path, 0o700)
    return Zombies(tmp_path, "zombies", limit=0.5)  # its limit is what finds a stopped rank


def after_recovery(world: Zombies, group: Group, transport: Transport, wrong: int) -> int:
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


def survivor(world: Zombies, rank: int) -> int:
    with world.group(rank) as group, world.transport(group) as transport:
        wrong = load(transport, 1, 20)
        with pytest.raises(errors.GroupError):
            for epoch in range(2, 1000):
                wrong += load(transport, epoch, 20)
        world.tell(f"{rank} has heard")
        transport.recover(timeout=30)
        return after_recovery(world, group, transport, wrong)


def newcomer(world: Zombies, rank: int) -> int:
    with world.group(rank, take_over=True) as group, world.transport(group) as transport:
        return after_recovery(world, group, transport, 0)


def zombie(world: Zombies, rank: int, where: str) -> list[str]:
    """Stops in mid-layer, or between layers; afterwards tries everything."""
    # Its copies are slow: else the layer could be complete here before the signal stops the process.
    slow = {"device": "link:0,slow=20ms", "slots": 4}
    with world.group(rank) as group, world.transport(group, **slow) as transport:
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
def test_a_stopped_rank_is_replaced_and_refused_when_it_wakes(world: Zombies, victim: int, where: str) -> None:
    undead = Child(lambda: zombie(world, victim, where))
    living = {rank: Child(lambda rank=rank: survivor(world, rank)) for rank in range(TP) if rank != victim}
    fresh: Child | None = None
    try:
        eventually(lambda: undead.state() == "T", 30)
        if where == "joined":  # when idle, nothing is wrong until somebody takes its place
            for rank in living:
                world.hear(f"{rank} has heard", living[rank])
        fresh = Child(lambda: newcomer(world, victim))
        world.hear("wake", fresh, *living.values())
        undead.signal(signal.SIGCONT)
        seen = undead.result(60)
        assert isinstance(seen, list) and "nothing" not in seen[:2], seen
        assert seen[-2:] == ["Superseded", "Superseded"], seen
        assert [child.result(60) for child in (*living.values(), fresh)] == [0, 0, 0]
    finally:
        for child in (undead, fresh, *living.values()):
            if child is not None and child.status is None:
                child.kill()


def test_who_does_not_take_over_is_refused_while_the_stopped_one_lives(world: Zombies) -> None:
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
