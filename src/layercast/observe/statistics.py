"""Figures of one layer load, as `Transport.wait` returns them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class LayerStatistics:
    """One layer on one rank. Times in milliseconds.

    Rank 0's: `writer_ms` inside the writer, `slot_wait_ms` waiting for a free slot, `total_ms` whole production.
    This rank's: `h2d_ms` while copies to its device were in flight, `bytes` that travelled, `pieces` they came in,
    `resident_bytes` copied inside the device, `direct` whether they came straight from the arena. Of the host memory
    that this rank's device copies from: `pinned_bytes`, and `unpinned_bytes` that could not be pinned.
    """

    epoch: int
    layer: int
    experts: int
    rank: int
    writer_ms: float
    slot_wait_ms: float
    h2d_ms: float
    total_ms: float
    bytes: int
    pieces: int
    resident_bytes: int
    direct: bool
    pinned_bytes: int
    unpinned_bytes: int

    @classmethod
    def from_native(cls, figures: Mapping[str, Any]) -> LayerStatistics:
        """From the native core's figures."""
        return cls(**named(figures))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(vars(self))


def named(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The native core's figures, whose names are version 2's, under ours."""
    return {_RENAMED.get(name, name): value for name, value in figures.items()}


_RENAMED = {"layer_id": "layer", "expert_count": "experts"}
