"""Which rank holds what of which expert, and that the block table says the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from format_tools import KINDS, model, same, values_on_rank, walk
from hypothesis import given
from hypothesis import strategies as st

from layercast.checkpoint import Checkpoint, Placement
from layercast.errors import GeometryError


@given(experts=st.integers(1, 40), ranks=st.integers(1, 9))
def test_every_expert_has_one_owner(experts: int, ranks: int) -> None:
    placement = Placement("expert", experts, ranks)
    owned = [placement.experts_of(rank) for rank in range(ranks)]
    assert sorted(expert for mine in owned for expert in mine) == list(range(experts))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert placement.positions == -(-experts // ranks) and placement.parts == 1


def test_tensor_gives_every_rank_a_part_of_every_expert() -> None:
    placement = Placement("tensor", 3, 4)
    assert [placement.experts_of(rank) for rank in range(4)] == [(0, 1, 2)] * 4
    assert (placement.positions, placement.parts, placement.part_of(3)) == (3, 4, 3)


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("owners", [(), (2, 0, 0, 2, 0)])
def test_whole_experts(tmp_path: Path, form: str, owners: tuple[int, ...]) -> None:
    made = model(form, experts=5, hidden=128, inner=192)
    checkpoint = Checkpoint.open(made.save(tmp_path))
    placement = Placement("expert", 5, 3, owners)
    cut = checkpoint.blocks(1, 3, placement=placement)
    assert cut.placement == placement
    assert cut.layout == checkpoint.layout(3, placement="expert") == checkpoint.layout(1)
    assert cut.experts == placement.positions
    seen = []
    for rank in range(3):
        mine = placement.experts_of(rank)
        for position in range(cut.experts):
            kinds = {kind.name: walk(cut.of(position, rank, n)) for n, kind in enumerate(cut.layout.kinds)}
            if position >= len(mine):
                assert [data.nbytes for data in kinds.values()] == [0] * len(kinds)
                continue
            expert = mine[position]
            seen.append(expert)
            for name, data in checkpoint.reference(1, expert, rank, 3, placement=placement).items():
                assert data.tobytes() == kinds[name].tobytes()
            gate, up, down = made.values[1, expert]
            w13, w2 = values_on_rank(kinds, cut.layout)
            same(w13, np.concatenate([gate, up]))
            same(w2, down)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_whole_experts_need_no_grid(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(model("fp8_block", inner=320, hidden=128).save(tmp_path))
    with pytest.raises(GeometryError):
        checkpoint.blocks(1, 2)
    assert checkpoint.blocks(1, 2, placement="expert").layout.tp == 1
    with pytest.raises(GeometryError, match="rank 0 holds nothing of expert 1"):
        checkpoint.reference(1, 1, 0, 2, placement="expert")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("column", 4, 2), "placement is 'column'"),
        (("tensor", 0, 2), "expected 1 or more"),
        (("tensor", 2, 2, (0, 1)), "no owners"),
        (("expert", 2, 2, (0, 2)), "an owner of 0 to 1"),
        (("expert", 2, 2, (0,)), "for each of 2 experts"),
    ],
)
def test_bad_placements_are_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(GeometryError, match=words):
        Placement(*arguments)  # type: ignore[arg-type]


def test_a_placement_must_fit_the_layer(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(model("bf16").save(tmp_path))
    for placement in (Placement("expert", 3, 2), Placement("expert", 2, 3)):
        with pytest.raises(GeometryError, match="the layer has 2 and there are 2 ranks"):
            checkpoint.blocks(1, 2, placement=placement)
    with pytest.raises(GeometryError, match="rank 2 does not exist"):
        Placement("expert", 3, 2).experts_of(2)
