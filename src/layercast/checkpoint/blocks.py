"""A layer as strided blocks of mapped memory, which a writer copies without knowing files or formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.cuts import Pick, Strides, gather
from layercast.checkpoint.experts import Layer
from layercast.checkpoint.formats import to_float32
from layercast.checkpoint.naming import Operand
from layercast.checkpoint.placement import Placement
from layercast.geometry import ExpertLayout

_FIELDS = ("src", "stride", "row_bytes", "rows", "step", "count")
BLOCK_DTYPE = np.dtype([(name, "<u8") for name in _FIELDS])
"""A block: virtual address of its first row, bytes from row to row, bytes per row, number of rows; bytes from one
repetition of these rows to the next, number of repetitions.

A stride of 0 hands the same row out again: a scale that stands for several rows of a finer grid. A matrix on its side
has rows of one element, repeated once per column.
"""


@dataclass(frozen=True)
class LayerBlocks:
    """Blocks of one layer for all positions, ranks and kinds.

    A position is a place in the ranks' device layers: with placement "tensor" the expert of this number on
    every rank; with "expert" the one that `placement.experts_of(rank)` names, and nothing where a rank owns
    fewer. `experts`: the number of positions.

    `blocks` is C-contiguous with `BLOCK_DTYPE`, `index` uint64 of shape [experts * ranks * kinds + 1]. The
    bytes of (position, rank, kind) are those of blocks[index[i]:index[i + 1]], i = (position * ranks + rank) *
    kinds + kind, one block after the other, row after row. Kinds are numbered as in `layout.kinds`. The
    mapped files, and scales that were converted, stay for as long as this object lives, also after the
    checkpoint is closed.
    """

    layer: int
    experts: int
    layout: ExpertLayout
    placement: Placement
    blocks: NDArray[np.void]
    index: NDArray[np.uint64]
    _keep: object = field(repr=False, compare=False)

    def of(self, position: int, rank: int, kind: int) -> NDArray[np.void]:
        """The blocks of one kind at one position on one rank; IndexError where there is no such thing."""
        ranks, kinds = self.placement.ranks, len(self.layout.kinds)
        for value, size, name in ((position, self.experts, "expert"), (rank, ranks, "rank"), (kind, kinds, "kind")):
            if not 0 <= value < size:
                raise IndexError(f"{name} {value} is outside 0 to {size - 1}")
        i = (position * ranks + rank) * kinds + kind
        return self.blocks[int(self.index[i]) : int(self.index[i + 1])]


class BlockTemplate:
    """The cuts of one expert into its parts: the same for every expert but for the matrices' addresses."""

    def __init__(self, layer: Layer, layout: ExpertLayout) -> None:
        reads = [Read.of(layer, layout, operand) for operand in layer.operands]
        self._parts = []
        for part in range(layout.tp):
            kinds = [
                [(pick.operand, gather(reads[pick.operand].strides, pick.rows, columns)) for pick in picks]
                for picks in layer.form.picks(layout, part)
                for columns in [_columns(reads, picks, layout, part)]
            ]
            counts = [sum(len(cuts) for _, cuts in kind) for kind in kinds]
            flat = [item for kind in kinds for item in kind]
            operands = np.concatenate([np.full(len(cuts), number) for number, cuts in flat])
            # every cut lies inside its matrix and every matrix inside its file: no sum below can wrap
            cuts = np.concatenate([cuts for _, cuts in flat]).astype(np.uint64)
            self._parts.append((np.array(counts, dtype=np.uint64), operands, cuts))

    def fill(
        self, layer: int, addresses: NDArray[np.uint64], layout: ExpertLayout, placement: Placement, keep: object
    ) -> LayerBlocks:
        """The blocks of a layer from its matrices' `addresses`, uint64 [experts, operands]."""
        kinds = len(layout.kinds)
        counts = np.zeros((placement.positions, placement.ranks, kinds), dtype=np.uint64)
        for rank in range(placement.ranks):
            counts[: len(placement.experts_of(rank)), rank] = self._parts[placement.part_of(rank)][0]
        index = np.zeros(counts.size + 1, dtype=np.uint64)
        np.cumsum(counts, out=index[1:], dtype=np.uint64)
        blocks = np.empty(int(index[-1]), dtype=BLOCK_DTYPE)
        starts = index[:-1:kinds].reshape(placement.positions, placement.ranks)
        for rank in range(placement.ranks):
            mine = list(placement.experts_of(rank))
            _, operands, cuts = self._parts[placement.part_of(rank)]
            at = (starts[: len(mine), rank, None] + np.arange(len(cuts), dtype=np.uint64)).astype(np.intp)
            blocks["src"][at] = addresses[mine][:, operands] + cuts[:, 0]
            for column, name in enumerate(_FIELDS[1:], 1):
                blocks[name][at] = cuts[:, column]
        return LayerBlocks(layer, placement.positions, layout, placement, blocks, index, keep)


@dataclass(frozen=True)
class Read:
    """How an operand is read: from its file, or from a copy that the cut owns.

    `strides`: of the matrix that is read. `convert`: its scales are made float32. `times`: each column of it
    stands this often, for a finer grid: one copy per layer costs less than a block for each few bytes.
    """

    strides: Strides
    convert: bool
    times: int

    @classmethod
    def of(cls, layer: Layer, layout: ExpertLayout, operand: Operand) -> Read:
        """The way to read `operand` for ranks of this layout."""
        convert, times, columns = _is_converted(operand), 1, operand.role.columns
        if (operand.role.projection, operand.role.part) == ("down", "scale"):
            fine = layout.kinds[layout.kind_index("w2_scale")].block
            block = layer.form.weights.block[1]
            if fine is not None and 0 < fine[1] < block:
                times, columns = block // fine[1], layout.intermediate // fine[1]
        if not convert and times == 1:
            return cls(operand.strides, False, 1)
        size = 4 if convert else operand.strides.itemsize
        return cls(Strides(operand.role.rows, columns, size, columns * size, size), convert, times)

    @property
    def owned(self) -> bool:
        """Whether it is a copy."""
        return self.convert or self.times > 1


def _columns(reads: list[Read], picks: tuple[Pick, ...], layout: ExpertLayout, part: int) -> NDArray[np.intp]:
    """Columns of the matrix that is read: of a finer one the rank's own, one after the other."""
    read = reads[picks[0].operand]
    if read.times == 1:
        return picks[0].columns
    count = read.strides.columns // layout.tp
    return np.arange(part * count, (part + 1) * count)


def read_addresses(layer: Layer, layout: ExpertLayout) -> tuple[NDArray[np.uint64], list[NDArray[Any]]]:
    """Where each expert's matrices are read, uint64 [experts, operands], and the copies made for it."""
    columns, made = [], []
    for operand in layer.operands:
        read = Read.of(layer, layout, operand)
        if not read.owned:
            columns.append(operand.addresses)
            continue
        copies = np.stack([_plain(operand, expert) for expert in range(layer.experts)])
        if read.times > 1:
            copies = np.ascontiguousarray(np.repeat(copies, read.times, axis=2)[:, :, : read.strides.columns])
        made.append(copies)
        columns.append(copies.ctypes.data + np.arange(layer.experts, dtype=np.uint64) * np.uint64(copies[0].nbytes))
    return np.stack(columns, axis=1), made


def _plain(operand: Operand, expert: int) -> NDArray[Any]:
    """One expert's scales [rows, columns], as float32 where they are converted."""
    if _is_converted(operand):
        return converted(operand, expert)
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32}[operand.strides.itemsize]
    return np.ascontiguousarray(operand.matrix(expert)).view(word)[:, :, 0]


def converted(operand: Operand, expert: int) -> NDArray[np.float32]:
    """One expert's scales as float32 [rows, columns]."""
    plain = np.ascontiguousarray(operand.matrix(expert))
    return to_float32(plain.reshape(-1), operand.dtype).reshape(operand.role.rows, operand.role.columns)


def reference(layer: Layer, layout: ExpertLayout, expert: int, part: int) -> dict[str, NDArray[np.uint8]]:
    """One expert's kinds on one rank, uint8 [nbytes] each, copied with numpy's own indexing."""
    found = {}
    for kind, picks in zip(layout.kinds, layer.form.picks(layout, part), strict=True):
        parts = []
        for pick in picks:
            operand = layer.operands[pick.operand]
            if _is_converted(operand):
                matrix = converted(operand, expert)[:, :, None].view(np.uint8)
            else:
                matrix = operand.matrix(expert)
            parts.append(matrix[pick.rows][:, pick.columns].reshape(-1))
        found[kind.name] = np.concatenate(parts)
    return found


def _is_converted(operand: Operand) -> bool:
    return operand.role.convert and operand.dtype != "F32"
