"""Blocks of any shape, anywhere in memory, cut at any byte: the native writer copies what numpy's indexing says."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layercast import _native

SLACK = 0xEE


class Shape(NamedTuple):
    """A block but for its address."""

    width: int
    gap: int
    rows: int
    step: int
    count: int

    @property
    def stride(self) -> int:
        return self.width + self.gap

    @property
    def reach(self) -> int:
        return (self.count - 1) * self.step + (self.rows - 1) * self.stride + self.width

    @property
    def nbytes(self) -> int:
        return self.count * self.rows * self.width


def upright() -> st.SearchStrategy[Shape]:
    widths = st.sampled_from([1, 2, 3, 4, 8, 16, 24, 33, 64, 120, 128, 511, 520])
    return st.builds(
        Shape, widths, st.sampled_from([0, 1, 7, 64, 130]), st.integers(1, 70), st.just(0), st.integers(1, 2)
    )


@st.composite
def turned(draw: st.DrawFn) -> Shape:
    """Columns of a matrix whose elements lie `step` apart, in rows of the file with a gap behind them."""
    width, step = draw(st.sampled_from([(1, 1), (2, 2), (2, 4), (4, 4), (2, 6), (1, 2)]))
    count = draw(st.integers(1, 70) | st.integers(500, 530))
    gap = count * step - width + draw(st.sampled_from([0, 1, 64]))
    return Shape(width, max(gap, 0), draw(st.integers(1, 140)), step, count)


def memory_of(shape: Shape, start: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Random memory that ends where the block does, and the block's bytes."""
    memory = np.random.default_rng(seed).integers(0, 256, start + shape.reach, dtype=np.uint8)
    view = np.lib.stride_tricks.as_strided(
        memory[start:], (shape.count, shape.rows, shape.width), (shape.step, shape.stride, 1)
    )
    return memory, view.reshape(-1).copy()


def filled(shapes: list[list[Shape]], starts: list[int], ranks: int, piece_bytes: int) -> None:
    """Every kind is one rank's blocks, one after the other; all ranks alike but for the address."""
    rows, index, keep = [], [0], []
    wanted: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for rank in range(ranks):
        for kind, blocks in enumerate(shapes):
            parts = []
            for number, shape in enumerate(blocks):
                start = starts[(rank + kind + number) % len(starts)]
                memory, data = memory_of(shape, start, seed=rank * 100 + kind * 10 + number)
                keep.append(memory)
                parts.append(data)
                address = memory.ctypes.data + start
                rows.append((address, shape.stride, shape.width, shape.rows, shape.step, shape.count))
            index.append(len(rows))
            wanted[rank].append(np.concatenate(parts))
    assert_filled(rows, index, wanted, piece_bytes, keep)


def assert_filled(
    rows: list[tuple[int, ...]], index: list[int], wanted: list[list[np.ndarray]], piece_bytes: int, keep: object
) -> None:
    ranks, sizes = len(wanted), [data.nbytes for data in wanted[0]]
    table = np.array(rows, dtype=np.uint64)
    writer = _native.block_writer(table, np.array(index, dtype=np.uint64), 1, ranks, len(sizes), 0, keep)
    pieces = -(-sum(sizes) // piece_bytes)
    slots = np.full((pieces, ranks, piece_bytes), SLACK, np.uint8)
    _native.fill_slots(writer, 0, ranks, 1, sizes, piece_bytes, slots.ctypes.data, pieces)
    cut = _native.cut(sizes, 1, piece_bytes, False, writer.paired())
    for rank in range(ranks):
        for piece, slot in zip(cut, slots[:, rank], strict=True):
            end = 0
            for _, kind, offset, nbytes, at in piece:
                np.testing.assert_array_equal(slot[at : at + nbytes], wanted[rank][kind][offset : offset + nbytes])
                end = at + nbytes
            assert (slot[end:] == SLACK).all()
        kinds = [np.full(size + 1, SLACK, np.uint8) for size in sizes]
        _native.fill_arena(writer, 0, rank, ranks, 0, 1, sizes, [kind.ctypes.data for kind in kinds])
        for kind, data in zip(kinds, wanted[rank], strict=True):
            np.testing.assert_array_equal(kind[:-1], data)
            assert kind[-1] == SLACK


kinds = st.lists(st.lists(upright() | turned(), min_size=1, max_size=3), min_size=1, max_size=2)


@settings(max_examples=150, deadline=None)
@given(kinds, st.lists(st.integers(0, 65), min_size=1, max_size=3), st.integers(1, 3), st.data())
def test_any_blocks_cut_at_any_byte(
    shapes: list[list[Shape]], starts: list[int], ranks: int, data: st.DataObject
) -> None:
    total = sum(shape.nbytes for kind in shapes for shape in kind)
    filled(shapes, starts, ranks, data.draw(st.integers(max(1, total // 40), total + 1)))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 600), st.integers(2, 60), st.integers(2, 5), st.integers(0, 65), st.data())
def test_columns_side_by_side_cut_at_any_byte(
    width: int, count: int, ranks: int, start: int, data: st.DataObject
) -> None:
    """Each rank has the same columns of one matrix, beside the others'."""
    stride = ranks * width + data.draw(st.sampled_from([0, 1, 64]))
    memory, _ = memory_of(Shape(ranks * width, stride - ranks * width, count, 0, 1), start, seed=1)
    address = memory.ctypes.data + start
    rows = [(address + rank * width, stride, width, count, 0, 1) for rank in range(ranks)]
    tiled = np.lib.stride_tricks.as_strided(memory[start:], (count, ranks, width), (stride, width, 1))
    wanted = [[tiled[:, rank].reshape(-1).copy()] for rank in range(ranks)]
    piece = data.draw(st.integers(max(1, width * count // 40), width * count + 1))
    assert_filled(rows, list(range(ranks + 1)), wanted, piece, memory)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 600), st.integers(2, 60), st.integers(1, 3), st.integers(0, 65), st.data())
def test_halves_whose_rows_take_turns_cut_at_any_byte(
    width: int, count: int, ranks: int, start: int, data: st.DataObject
) -> None:
    """Gate's and up's rows in turns, each rank with rows of its own, and a kind behind them."""
    memory, _ = memory_of(Shape(width, width, 2 * count * ranks, 0, 1), start, seed=1)
    address = memory.ctypes.data + start
    table, wanted = [], []
    for rank in range(ranks):
        first = 2 * width * count * rank
        table += [(address + first + half * width, 2 * width, width, count, 0, 1) for half in (0, 1)]
        table += [(address, 7, 7, 1, 0, 1)]
        rows = memory[start + first : start + first + 2 * width * count].reshape(count, 2, width)
        wanted.append([rows.transpose(1, 0, 2).reshape(-1).copy(), memory[start : start + 7]])
    index = [0]
    for _ in range(ranks):
        index += [index[-1] + 2, index[-1] + 3]
    total = 2 * width * count + 7
    assert_filled(table, index, wanted, data.draw(st.integers(max(1, total // 40), total + 1)), memory)


@pytest.mark.parametrize("step", [1, 2, 4])
def test_whole_tiles_of_a_large_matrix(step: int) -> None:
    """Panels, tiles and squares, and what is left of each."""
    width = min(step, 2)
    for columns, rows in ((1025, 129), (64, 64), (600, 31), (33, 300)):
        shape = Shape(width, columns * step - width, rows, step, columns)
        for piece in (shape.nbytes, 4096, 10_007):
            filled([[shape]], [8], 1, piece)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("columns", [16, 32, 64, 70])
def test_nothing_behind_the_block_is_read(step: int, columns: int) -> None:
    """The block ends where the mapping does. In a child: what it would die of is SIGSEGV."""
    width = min(step, 2)
    shape = Shape(width, columns * step - width, 64, step, columns)
    # gpt-oss: the up projection's columns begin at the second element, so that the last one ends the row
    size = -(-shape.reach // mmap.PAGESIZE) * mmap.PAGESIZE
    if (child := os.fork()) == 0:
        space = mmap.mmap(-1, size + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(space))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
            os._exit(77)
        rows = [(base + size - shape.reach, shape.stride, width, shape.rows, step, columns)]
        assert_filled(rows, [0, 1], [[np.zeros(shape.nbytes, np.uint8)]], shape.nbytes, space)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_block_without_repetitions_is_refused() -> None:
    memory = np.zeros(16, np.uint8)
    table = np.array([(memory.ctypes.data, 16, 16, 1, 0, 0)], dtype=np.uint64)
    with pytest.raises(Exception, match="a block has no bytes"):
        _native.block_writer(table, np.array([0, 1], dtype=np.uint64), 1, 1, 1, 0, memory)
