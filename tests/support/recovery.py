"""Ranks in processes of their own that fail, are replaced, and go on."""

from __future__ import annotations

from pathlib import Path

from layercast import Group, Transport, _native
from layercast.writers import pattern_writer

KINDS = (5000, 64)
EXPERTS = 8
TP = 3


class World:
    """What the ranks of a group agree on. `limit`: seconds without progress."""

    def __init__(self, folder: Path, name: str, limit: float = 30) -> None:
        self.folder, self.name, self.limit = folder, name, limit
        self.tp = TP

    def group(self, rank: int, take_over: bool = False) -> Group:
        return Group(self.name, rank, self.tp, runtime_dir=self.folder, timeout=30, take_over=take_over)

    def transport(self, group: Group, **options: object) -> Transport:
        options = {"join_timeout": 30, "timeout": self.limit, **options}
        return Transport(group, KINDS, num_experts=EXPERTS, piece_bytes=2000, **options)


def load(transport: Transport, epoch: int, seed: int) -> int:
    """Wrong experts of a layer of this seed's pattern."""
    transport.load(epoch, 3, EXPERTS, pattern_writer(seed))
    return _native.count_wrong_pattern(seed, 3, transport.rank, EXPERTS, list(KINDS), transport.destinations)[0]
