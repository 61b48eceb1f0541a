"""How the part that one rank needs is cut out of a matrix: strided blocks of bytes.

A matrix lies in memory as elements of `itemsize` bytes, `row_stride` and `column_stride` bytes apart: whole,
as one expert of a fused tensor, as every second row of one, or on its side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from layercast.errors import GeometryError

Cuts = NDArray[np.int64]
"""int64 [cuts, 6]: offset of the first row, bytes from row to row, bytes per row, rows; bytes from one repetition of
all that to the next, repetitions."""


class Pick(NamedTuple):
    """Rows and columns of one operand, by number, in order; a number may come again."""

    operand: int
    rows: NDArray[np.intp]
    columns: NDArray[np.intp]


@dataclass(frozen=True)
class Strides:
    """A matrix in memory: rows, columns, bytes per element and from one to the next."""

    rows: int
    columns: int
    itemsize: int
    row_stride: int
    column_stride: int


def gather(matrix: Strides, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Cuts:
    """The cuts whose bytes, one after the other, are matrix[rows][:, columns], row by row.

    Rows that touch become one row; rows alike (a scale that stands for several rows of a finer grid) have
    stride 0. GeometryError where some do not exist.
    """
    for name, wanted, size in (("row", rows, matrix.rows), ("column", columns, matrix.columns)):
        if len(wanted) == 0 or wanted.min() < 0 or wanted.max() >= size:
            raise GeometryError(f"a matrix of {matrix.rows} x {matrix.columns} has no such {name}s: {wanted[:8]}")
    ahead = _is_run(columns, 1)
    if ahead and matrix.column_stride == matrix.itemsize:
        at = int(columns[0]) * matrix.itemsize
        return _merge([(at, 0, len(columns) * matrix.itemsize, 1)], rows, matrix.row_stride)
    parts = [
        (first * matrix.column_stride, step * matrix.column_stride, matrix.itemsize, count)
        for first, step, count in _runs(columns)
    ]
    return _merge(parts, rows, matrix.row_stride)


def _merge(parts: Sequence[tuple[int, int, int, int]], rows: NDArray[np.intp], row_stride: int) -> Cuts:
    """The parts of one row, repeated for every row of `rows`."""
    if len(parts) > 1:
        one = np.array([_touching(*part) for part in parts], dtype=np.int64)
        every = np.tile(one, (len(rows), 1))
        every[:, 0] += np.repeat(rows * row_stride, len(parts))
        return every
    [(at, stride, width, count)] = parts
    if count == 1:
        cuts = [_touching(at + first * row_stride, step * row_stride, width, n) for first, step, n in _runs(rows)]
    else:
        cuts = [(at + first * row_stride, stride, width, count, step * row_stride, n) for first, step, n in _runs(rows)]
    return np.array(cuts, dtype=np.int64)


def _touching(at: int, stride: int, width: int, count: int) -> tuple[int, int, int, int, int, int]:
    if count == 1 or stride == width:
        return at, width * count, width * count, 1, 0, 1
    return at, stride, width, count, 0, 1


def _is_run(numbers: NDArray[np.intp], step: int) -> bool:
    return bool((np.diff(numbers) == step).all())


def _runs(numbers: NDArray[np.intp]) -> Iterator[tuple[int, int, int]]:
    """Arithmetic runs: first number, step >= 0, count."""
    steps = np.diff(numbers)
    if len(steps) == 0 or (steps[0] >= 0 and (steps == steps[0]).all()):
        yield int(numbers[0]), int(steps[0]) if len(steps) else 0, len(numbers)
        return
    start = 0
    while start < len(numbers):
        end = start + 1
        if end < len(numbers) and steps[start] >= 0:
            while end < len(numbers) and steps[end - 1] == steps[start]:
                end += 1
        step = int(steps[start]) if end - start > 1 else 0
        yield int(numbers[start]), step, end - start
        start = end
