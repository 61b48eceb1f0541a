"""The native block writer fills a rank's memory with what the layout says, from every family and format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layercast import Arena, Checkpoint, CheckpointSource, _native
from layercast.checkpoint import Placement, write_synthetic_checkpoint
from layercast.checkpoint.synth import RECIPES, formats_of

SMALL = {"layers": 2, "experts": 3, "hidden": 192, "intermediate": 192, "vocab": 16}
EVERY = [(like, form) for like in RECIPES for form in formats_of(like)]


def layer_in(arena: Arena, layer: int, source: CheckpointSource) -> list[np.ndarray]:
    """Per kind uint8 [experts, bytes]."""
    return [
        np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (nbytes * source.experts(layer))).from_address(address))
        .reshape(source.experts(layer), nbytes)
        .copy()
        for address, nbytes in zip(arena.addresses(layer), arena.kind_bytes, strict=True)
    ]


@pytest.mark.parametrize(("like", "form"), EVERY)
def test_an_arena_holds_the_ranks_share(tmp_path: Path, like: str, form: str) -> None:
    """192 / 4 lies off the block grid, and off that of groups: repeated rows and columns of scales too."""
    path = write_synthetic_checkpoint(tmp_path / "c", like=like, form=form, **SMALL)
    source = CheckpointSource(Checkpoint.open(path, off_grid="finer"))
    for tp, rank in ((1, 0), (4, 0), (4, 3)):
        with Arena(source, rank, tp, threads=1) as arena:
            for layer in source.layers:
                assert source.wrong_experts(layer, rank, tp, layer_in(arena, layer, source)) == []


@pytest.mark.parametrize("form", ["fp8_channel", "mxfp4"])
def test_whole_experts_reach_their_owner(tmp_path: Path, form: str) -> None:
    """Where a rank owns fewer, its last positions are left as they were."""
    path = write_synthetic_checkpoint(tmp_path / "c", like="mixtral", form=form, **SMALL)
    checkpoint = Checkpoint.open(path)
    placement = Placement("expert", 3, 2)
    cut = checkpoint.blocks(1, 2, placement=placement)
    sizes = cut.layout.sizes
    table = cut.blocks.view(np.uint64).reshape(-1, 6)
    writer = _native.block_writer(table, cut.index, cut.experts, 2, len(sizes), 1, cut)
    for rank in range(2):
        memory = [np.full((cut.experts, nbytes), 0xAB, np.uint8) for nbytes in sizes]
        addresses = [kind.ctypes.data for kind in memory]
        _native.fill_arena(writer, 1, rank, 2, 0, len(placement.experts_of(rank)), list(sizes), addresses)
        for position in range(cut.experts):
            mine = placement.experts_of(rank)
            if position >= len(mine):
                assert all((kind[position] == 0xAB).all() for kind in memory)
                continue
            wanted = checkpoint.reference(1, mine[position], rank, 2, placement=placement)
            for kind, data in zip(memory, wanted.values(), strict=True):
                assert kind[position].tobytes() == data.tobytes()
