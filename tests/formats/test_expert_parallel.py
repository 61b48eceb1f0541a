"""Whole experts per rank, through a group: every rank's bytes, the places that stay as they were, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import layercast
from tests.formats import expert_ranks
from tests.support.rig import Rig

from layercast import Checkpoint, _native, errors, launch
from layercast.checkpoint import Placement, write_synthetic_checkpoint
from layercast.launch import RankFailed
from layercast.writers import checkpoint_writer

SHAPE = {"layers": 2, "hidden": 256, "intermediate": 192, "vocab": 16}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five experts: over two ranks one has a place too many, over four three have."""
    monkeypatch.setenv("LAYERCAST_RUNTIME_DIR", str(tmp_path / "run"))
    return write_synthetic_checkpoint(tmp_path / "c", like="qwen3-moe", form="fp8_block", experts=5, **SHAPE)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_each_rank_gets_its_own_and_nothing_else(made: Path, tp: int, direct: bool) -> None:
    for rank, loads in enumerate(launch(expert_ranks.stream, tp, args=(made, direct))):
        mine = Placement("expert", 5, tp).experts_of(rank)
        each = Checkpoint.open(made).layout(1).nbytes
        assert loads == [expert_ranks.Load([], len(mine) * each, True)] * 2


@pytest.mark.parametrize("owners", [(1, 1, 1, 1, 1), (3, 0, 3, 0, 3)])
def test_ranks_that_own_nothing_acknowledge(made: Path, owners: tuple[int, ...]) -> None:
    loads = launch(expert_ranks.load_owners, 4, args=(made, owners))
    each = Checkpoint.open(made).layout(1).nbytes
    assert loads == [expert_ranks.Load([], owners.count(rank) * each, True) for rank in range(4)]


def test_other_owners_on_another_rank_are_refused_by_all(made: Path) -> None:
    with pytest.raises(RankFailed) as caught:
        launch(expert_ranks.disagree, 2, args=(made,))
    assert isinstance(caught.value.__cause__, errors.ProtocolError)
    assert "rank 0 joined layer 1 with 3 experts" in str(caught.value.__cause__)


def test_a_writer_for_another_placement_is_refused_before_anything_moves(made: Path) -> None:
    checkpoint = Checkpoint.open(made)
    kinds = tuple(checkpoint.layout(1).sizes)
    writer = checkpoint_writer(checkpoint, 1, 2, Placement("expert", 5, 2, (0, 0, 1, 0, 1)))
    with Rig(2, kinds, 3) as rig:
        rig.each(lambda rank: rig.transports[rank].join(1, 1, 3, owners=[0, 0, 1, 1, 1]))
        with pytest.raises(errors.ConfigError, match="nothing for rank 1's position 2; was it made for another"):
            rig.transports[0].run(1, 1, 3, writer)
        rig.transports[0].cancel(1)


@pytest.mark.parametrize(
    ("positions", "ids", "owners", "words"),
    [
        (2, None, [0, 0, 0], "its 3 experts take 3 positions on ranks 0 to 1, which own 3; join was given 2"),
        (1, None, [0, 2], "which own 1"),
        (1, [1], [0, 1], "selected or resident ones do not go with it"),
    ],
)
def test_bad_placements_are_refused(positions: int, ids: list[int] | None, owners: list[int], words: str) -> None:
    with Rig(2, (64,), 4) as rig:
        with pytest.raises(errors.ConfigError, match=words):
            rig.transports[1].join(1, 1, positions, ids, owners=owners)
        rig.load_checked(1, 1, 4, _native.pattern_writer(1))  # a call with bad arguments can be repeated


def test_checks_on_arrival_know_what_a_rank_owns() -> None:
    """A writer that fills every place: the checksum is of what the rank takes."""
    with Rig(2, (5000, 8), 2) as rig:
        for region in rig.destinations[1]:
            region.array[:] = 0xEE

        def call(rank: int) -> object:
            rig.transports[rank].join(1, 1, 2, owners=[0, 1, 0])
            if rank == 0:
                rig.transports[0].run(1, 1, 2, _native.pattern_writer(1))
            return rig.transports[rank].wait(1)

        assert [figures["bytes"] for figures in rig.each(call)] == [2 * 5008, 5008]
        assert (rig.destinations[1][0].array[5000:] == 0xEE).all()
        assert not np.array_equal(rig.destinations[1][0].array[:5000], np.full(5000, 0xEE))


@pytest.mark.parametrize("more", [("--tp", 2), ("--tp", 4, "--device", "link:0")])
def test_stream_with_whole_experts(made: Path, more: tuple[object, ...]) -> None:
    done = layercast("stream", made, "--placement", "expert", "--verify", "--json", *more)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["verified"] is True and report["experts"] == 10
    assert report["bytes"] == 10 * Checkpoint.open(made).layout(1).nbytes


def test_stream_off_the_grid_asks_for_finer(made: Path) -> None:
    """192 rows over two ranks: 96 are no whole block."""
    refused = layercast("stream", made, "--tp", 2)
    assert refused.returncode == 2 and "off_grid='finer' (stream --finer) allows this one" in refused.stderr
    done = layercast("stream", made, "--tp", 2, "--finer", "--verify", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verified"] is True


@pytest.mark.parametrize("option", [("--finer",), ("--placement", "expert")])
def test_options_for_checkpoints_are_refused_for_shapes(option: tuple[str, ...]) -> None:
    done = layercast("stream", "--synthetic", "qwen3-30b", *option)
    assert done.returncode == 2 and "are for checkpoints" in done.stderr
