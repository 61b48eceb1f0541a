"""Blocks of mapped memory: the same bytes as plain slicing, for every rank, and how long they live."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from ckpt_tools import tiny_model, walk
from hypothesis import given, settings
from hypothesis import strategies as st

from layercast.checkpoint import BLOCK_DTYPE, Checkpoint
from layercast.checkpoint.blocks import BlockTemplate
from layercast.checkpoint.cuts import cut_columns, cut_rows
from layercast.checkpoint.formats import BlockFp8
from layercast.errors import CheckpointError, GeometryError, StateError
from layercast.geometry import SHAPES


def assert_blocks_are_reference(checkpoint: Checkpoint, tp: int) -> None:
    for layer in checkpoint.layers:
        blocks = checkpoint.blocks(layer, tp)
        for expert in range(blocks.experts):
            for rank in range(tp):
                wanted = checkpoint.reference(layer, expert, rank, tp)
                for number, kind in enumerate(blocks.layout.kinds):
                    seen = walk(blocks.of(expert, rank, number))
                    assert len(seen) == kind.nbytes
                    assert seen == wanted[kind.name].tobytes(), (layer, expert, rank, kind.name)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_blocks_are_the_reference(tmp_path: Path, tp: int) -> None:
    model = tiny_model(intermediate=512, hidden=384)
    assert_blocks_are_reference(Checkpoint.open(model.save(tmp_path, shards=3)), tp)


def test_case_09_whole_experts_off_the_grid_are_exact(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tiny_model(intermediate=320, hidden=192).save(tmp_path))
    assert_blocks_are_reference(checkpoint, 1)
    with pytest.raises(GeometryError, match="I = 320 cannot be cut for T = 2"):
        checkpoint.blocks(1, 2)


def test_form_of_the_arrays(tmp_path: Path) -> None:
    blocks = Checkpoint.open(tiny_model().save(tmp_path)).blocks(1, 2)
    assert blocks.blocks.dtype == BLOCK_DTYPE and blocks.blocks.flags.c_contiguous
    assert blocks.blocks.itemsize == 32
    assert blocks.index.dtype == np.uint64 and blocks.index.shape == (2 * 2 * 4 + 1,)
    assert list(blocks.index[:5]) == [0, 2, 4, 5, 6] and int(blocks.index[-1]) == len(blocks.blocks)
    down = blocks.of(0, 0, 2)[0]
    assert (down["stride"], down["row_bytes"], down["rows"]) == (256, 128, 256)
    for bad in ((2, 0, 0), (0, 2, 0), (0, 0, 4), (-1, 0, 0)):
        with pytest.raises(IndexError):
            blocks.of(*bad)


def test_rows_that_touch_are_one_block(tmp_path: Path) -> None:
    blocks = Checkpoint.open(tiny_model().save(tmp_path)).blocks(1, 1).blocks
    assert set(blocks["rows"]) == {1}
    assert (blocks["stride"] == blocks["row_bytes"]).all()


@settings(max_examples=40, deadline=None)
@given(
    hidden=st.integers(1, 5).map(lambda n: n * 48),
    per_rank=st.integers(1, 3),
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    block=st.tuples(st.sampled_from([16, 32]), st.sampled_from([16, 32])),
    seed=st.integers(0, 99),
)
def test_slices_of_all_ranks_put_together_are_the_whole(
    hidden: int, per_rank: int, tp: int, block: tuple[int, int], seed: int
) -> None:
    intermediate = per_rank * tp * max(block)
    form, rng = BlockFp8(block), np.random.default_rng(seed)
    sources = form.sources(hidden, intermediate)
    size = {"F8_E4M3": 1, "F32": 4}
    tensors = [rng.integers(0, 256, s.shape[0] * s.shape[1] * size[s.dtype], dtype=np.uint8) for s in sources]
    layout, parts = form.layout(hidden, intermediate, tp), []
    addresses = np.array([[t.ctypes.data for t in tensors]], dtype=np.uint64)
    template = BlockTemplate(form, layout)
    filled = template.fill(0, addresses, keep=None)  # type: ignore[arg-type]
    for rank in range(tp):
        plain = form.reference(tensors, layout, rank)
        parts.append([walk(filled.of(0, rank, number)) for number in range(4)])
        assert parts[-1] == [plain[name].tobytes() for name in layout.names]
    for number, (first, second) in ((0, (0, 2)), (1, (1, 3))):
        halves = [(part[number][: len(part[number]) // 2], part[number][len(part[number]) // 2 :]) for part in parts]
        assert b"".join(half[0] for half in halves) == tensors[first].tobytes()
        assert b"".join(half[1] for half in halves) == tensors[second].tobytes()
    for number, source in ((2, 4), (3, 5)):
        rows = sources[source].shape[0]
        together = np.concatenate([np.frombuffer(p[number], np.uint8).reshape(rows, -1) for p in parts], axis=1)
        assert together.tobytes() == tensors[source].tobytes()


def test_cuts_stay_inside_their_tensor() -> None:
    sources = BlockFp8().sources(256, 256)
    for cut in (cut_rows, cut_columns):
        for first, count in ((0, 257), (256, 1), (-1, 2), (0, 0)):
            with pytest.raises(GeometryError, match="has no part"):
                cut(sources, 0, first, count)


def test_a_large_layer_takes_milliseconds() -> None:
    shape, form = SHAPES["glm-5-next"], BlockFp8()
    addresses = np.arange(shape.experts * 6, dtype=np.uint64).reshape(shape.experts, 6)
    begin = time.perf_counter()
    blocks = BlockTemplate(form, shape.layout(8)).fill(3, addresses, keep=None)  # type: ignore[arg-type]
    assert time.perf_counter() - begin < 0.1
    assert len(blocks.blocks) == shape.experts * 8 * 6


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_mappings_live_as_long_as_blocks_do(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path)
    with Checkpoint.open(path) as checkpoint:
        wanted = checkpoint.reference(2, 1, 1, 2)["w2"].tobytes()
        blocks = checkpoint.blocks(2, 2)
    with pytest.raises(StateError, match="is closed"):
        checkpoint.blocks(2, 2)
    with pytest.raises(StateError, match="is closed"):
        checkpoint.reference(2, 0, 0, 1)
    checkpoint.close()
    del checkpoint
    assert is_mapped(path)
    assert walk(blocks.of(1, 1, 2)) == wanted
    del blocks
    assert not is_mapped(path)


def test_closing_without_blocks_unmaps(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path)
    checkpoint = Checkpoint.open(path)
    assert is_mapped(path)
    checkpoint.close()
    assert not is_mapped(path)


def test_case_21_a_file_cut_after_opening(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path)
    checkpoint = Checkpoint.open(path)
    file = path / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 4096)
    with pytest.raises(
        CheckpointError, match=f"had {size} bytes when it was opened and has {size - 4096} now"
    ) as caught:
        checkpoint.blocks(1, 1)
    assert caught.value.reason == "file_changed"


def test_reference_refuses_what_does_not_exist(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(tiny_model().save(tmp_path))
    with pytest.raises(GeometryError, match="expert 2 does not exist"):
        checkpoint.reference(1, 2, 0, 1)
    with pytest.raises(GeometryError, match="rank 1 does not exist"):
        checkpoint.reference(1, 0, 1, 1)
