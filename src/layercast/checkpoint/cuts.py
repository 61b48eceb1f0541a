"""How the part that one rank needs is cut out of a tensor: strided blocks of bytes."""

from __future__ import annotations

from typing import NamedTuple

from layercast.errors import GeometryError

ITEMSIZE = {"F8_E4M3": 1, "F32": 4}
"""Bytes per element of the dtypes that supported formats read, in the spelling of safetensors."""


class Source(NamedTuple):
    """One tensor of an expert: projection (gate, up or down), the name's suffix, dtype, 2-D shape."""

    projection: str
    suffix: str
    dtype: str
    shape: tuple[int, int]


class Cut(NamedTuple):
    """`rows` rows of `row_bytes` bytes, `stride` bytes apart, from `offset` in the tensor `source`.

    `source` is a position in the format's list of sources. A cut whose rows touch is one row.
    """

    source: int
    offset: int
    stride: int
    row_bytes: int
    rows: int


def cut_rows(sources: tuple[Source, ...], source: int, first: int, count: int) -> Cut:
    """Rows [first, first + count) of a tensor, which lie together. GeometryError where some are missing."""
    rows, columns = sources[source].shape
    _check_inside(sources[source], first, count, rows)
    width = columns * ITEMSIZE[sources[source].dtype]
    return Cut(source, first * width, count * width, count * width, 1)


def cut_columns(sources: tuple[Source, ...], source: int, first: int, count: int) -> Cut:
    """Columns [first, first + count) of all rows of a tensor. GeometryError where some are missing."""
    rows, columns = sources[source].shape
    _check_inside(sources[source], first, count, columns)
    if count == columns:
        return cut_rows(sources, source, 0, rows)
    itemsize = ITEMSIZE[sources[source].dtype]
    return Cut(source, first * itemsize, columns * itemsize, count * itemsize, rows)


def _check_inside(source: Source, first: int, count: int, size: int) -> None:
    if first < 0 or count < 1 or first + count > size:
        raise GeometryError(
            f"{source.projection}.{source.suffix} {source.shape} has no part [{first}, {first + count})"
        )
