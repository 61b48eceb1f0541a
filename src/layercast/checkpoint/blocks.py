"""A layer as strided blocks of mapped memory, which a writer copies without knowing files or formats."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.formats import Format
from layercast.checkpoint.index import TensorIndex
from layercast.geometry import ExpertLayout

BLOCK_DTYPE = np.dtype([("src", "<u8"), ("stride", "<u8"), ("row_bytes", "<u8"), ("rows", "<u8")])
"""A block: virtual address of its first row, bytes from row to row, bytes per row, number of rows."""


@dataclass(frozen=True)
class LayerBlocks:
    """Blocks of one layer for all its experts, ranks and kinds.

    `blocks` is C-contiguous with `BLOCK_DTYPE`, `index` uint64 of shape [experts * tp * kinds + 1]. The
    bytes of (expert, rank, kind) are those of blocks[index[i]:index[i + 1]], i = (expert * tp + rank) *
    kinds + kind, one block after the other, row after row. Kinds are numbered as in `layout.kinds`. The
    mapped files stay mapped for as long as this object lives, also after the checkpoint is closed.
    """

    layer: int
    experts: int
    layout: ExpertLayout
    blocks: NDArray[np.void]
    index: NDArray[np.uint64]
    _keep: TensorIndex = field(repr=False, compare=False)

    def of(self, expert: int, rank: int, kind: int) -> NDArray[np.void]:
        """The blocks of one kind of one expert on one rank; IndexError where there is no such thing."""
        tp, kinds = self.layout.tp, len(self.layout.kinds)
        for value, size, name in (
            (expert, self.experts, "expert"),
            (rank, tp, "rank"),
            (kind, kinds, "kind"),
        ):
            if not 0 <= value < size:
                raise IndexError(f"{name} {value} is outside 0 to {size - 1}")
        i = (expert * tp + rank) * kinds + kind
        return self.blocks[int(self.index[i]) : int(self.index[i + 1])]


class BlockTemplate:
    """The cuts of one expert for all ranks: the same for every expert but for the tensors' addresses."""

    def __init__(self, form: Format, layout: ExpertLayout) -> None:
        per_kind = [kind for rank in range(layout.tp) for kind in form.cuts(layout, rank)]
        cuts = np.array([cut for kind in per_kind for cut in kind], dtype=np.uint64)
        self.layout = layout
        self._source = cuts[:, 0].astype(np.intp)
        self._offset = cuts[:, 1]
        self._shape = cuts[:, 2:]
        self._counts = np.array([len(kind) for kind in per_kind], dtype=np.uint64)
        # every cut lies inside its tensor and every tensor inside its mapping: the sums below cannot wrap

    def fill(self, layer: int, addresses: NDArray[np.uint64], keep: TensorIndex) -> LayerBlocks:
        """The blocks of a layer from its tensors' `addresses`, uint64 of shape [experts, sources]."""
        experts = len(addresses)
        blocks = np.empty((experts, len(self._source)), dtype=BLOCK_DTYPE)
        blocks["src"] = addresses[:, self._source] + self._offset
        for column, name in enumerate(("stride", "row_bytes", "rows")):
            blocks[name] = self._shape[:, column]
        index = np.zeros(experts * len(self._counts) + 1, dtype=np.uint64)
        np.cumsum(np.tile(self._counts, experts), out=index[1:])
        return LayerBlocks(layer, experts, self.layout, blocks.reshape(-1), index, keep)
