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
from layercast.checkpoint.cuts import Strides, gather
from layercast.checkpoint.experts import Layer
from layercast.checkpoint.formats import FP8_BLOCK
from layercast.checkpoint.naming import Operand
from layercast.checkpoint.placement import Placement
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
    assert blocks.blocks.itemsize == 48
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


matrices = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 4]), st.booleans())


@settings(max_examples=150, deadline=None)
@given(matrix=matrices, data=st.data())
def test_gather_is_numpys_indexing(matrix: tuple[int, int, int, bool], data: st.DataObject) -> None:
    """Whole rows, parts of them, repeated rows, steps and single elements, upright and on their side."""
    rows, columns, size, turned = matrix
    memory = np.random.default_rng(0).integers(0, 256, rows * columns * size, dtype=np.uint8)
    shape = (columns, rows, size) if turned else (rows, columns, size)
    whole = memory.reshape(shape).swapaxes(0, 1) if turned else memory.reshape(shape)
    strides = Strides(rows, columns, size, *((size, rows * size) if turned else (columns * size, size)))

    def chosen(limit: int) -> np.ndarray:
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, limit - 1))
            return np.arange(first, data.draw(st.integers(first + 1, limit)))
        return np.array(data.draw(st.lists(st.integers(0, limit - 1), min_size=1, max_size=9)))

    some_rows, some_columns = chosen(rows), chosen(columns)
    cuts = gather(strides, some_rows, some_columns)
    seen = b"".join(
        memory[at + again * step + row * stride :][:width].tobytes()
        for at, stride, width, count, step, times in cuts.tolist()
        for again in range(times)
        for row in range(count)
    )
    assert seen == whole[some_rows][:, some_columns].tobytes()


def test_gather_takes_few_cuts() -> None:
    upright, turned = Strides(64, 32, 2, 64, 2), Strides(64, 32, 2, 2, 128)
    every, some = np.arange(32), np.arange(8, 16)
    assert gather(upright, np.arange(8, 24), every).tolist() == [[512, 1024, 1024, 1, 0, 1]]
    assert gather(upright, np.arange(64), some).tolist() == [[16, 64, 16, 64, 0, 1]]
    assert gather(upright, np.arange(0, 64, 2), every).tolist() == [[0, 128, 64, 32, 0, 1]]
    assert gather(upright, np.array([3, 3, 3]), every).tolist() == [[192, 0, 64, 3, 0, 1]]
    assert gather(turned, np.array([1, 2]), every).tolist() == [[2, 128, 2, 32, 2, 2]]


@pytest.mark.parametrize("bad", [[64], [-1], []])
def test_gather_stays_inside_the_matrix(bad: list[int]) -> None:
    numbers, fine = np.array(bad, dtype=int), np.arange(4)
    for rows, columns in ((numbers, fine), (fine, numbers)):
        with pytest.raises(GeometryError, match="has no such"):
            gather(Strides(64, 64, 1, 64, 1), rows, columns)


def test_a_large_layer_takes_milliseconds() -> None:
    shape = SHAPES["glm-5-next"]
    operands = tuple(
        Operand(
            role,
            role.dtypes[0],
            Strides(role.rows, role.columns, width, role.columns * width, width),
            np.arange(shape.experts, dtype=np.uint64),
            lambda expert: np.zeros(0, np.uint8),
        )
        for role in FP8_BLOCK.roles(shape.hidden, shape.intermediate)
        for width in [4 if role.part == "scale" else 1]
    )
    layout = shape.layout(8)
    begin = time.perf_counter()
    template = BlockTemplate(Layer(3, shape.experts, FP8_BLOCK, operands), layout)
    addresses = np.arange(shape.experts * 6, dtype=np.uint64).reshape(shape.experts, 6)
    blocks = template.fill(3, addresses, layout, Placement("tensor", shape.experts, 8), None)
    assert time.perf_counter() - begin < 0.2
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
