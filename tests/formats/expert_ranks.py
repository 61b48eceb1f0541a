"""What the ranks of test_expert_parallel.py run: functions of a module, since they are pickled."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from layercast import Arena, Checkpoint, CheckpointSource, Group, Transport
from layercast.checkpoint import Placement
from layercast.sources import positions
from layercast.stream import stream_layers
from layercast.writers import checkpoint_writer

UNTOUCHED = 0xEE


class Load(NamedTuple):
    """Wrong experts, bytes that moved, and whether places that are not the rank's stayed as they were."""

    wrong: list[int]
    nbytes: int
    others_untouched: bool


def stream(group: Group, path: Path, direct: bool) -> list[Load]:
    source = CheckpointSource(Checkpoint.open(path), "expert")
    arena = Arena(source, group.rank, group.tp) if direct else None
    count = positions(source, group.tp)
    out = []
    with Transport(
        group, source.layout(group.tp), num_experts=count, piece_bytes=5000, arena=arena, verify="full"
    ) as transport:
        for layer in source.layers:
            views = transport.host_views()
            for view in views:
                view[:] = UNTOUCHED
            [figures] = stream_layers(transport, source, [layer])
            mine = len(source.placement(layer, group.tp).experts_of(group.rank))
            kept = all((view[mine:] == UNTOUCHED).all() for view in views)
            out.append(Load(source.wrong_experts(layer, group.rank, group.tp, views), figures.bytes, kept))
    return out


def load_owners(group: Group, path: Path, owners: tuple[int, ...]) -> Load:
    checkpoint = Checkpoint.open(path)
    placement = Placement("expert", len(owners), group.tp, owners)
    layout = checkpoint.layout(group.tp, placement=placement)
    with Transport(group, layout, num_experts=placement.positions, piece_bytes=5000) as transport:
        views = transport.host_views()
        for view in views:
            view[:] = UNTOUCHED
        writer = checkpoint_writer(checkpoint, 1, group.tp, placement) if group.rank == 0 else None
        figures = transport.load(1, 1, placement, writer)
        mine = placement.experts_of(group.rank)
        wrong = []
        for position, expert in enumerate(mine):
            wanted = checkpoint.reference(1, expert, group.rank, group.tp, placement=placement).values()
            if any(view[position].tobytes() != kind.tobytes() for view, kind in zip(views, wanted, strict=True)):
                wrong.append(expert)
        return Load(wrong, figures.bytes, all((view[len(mine) :] == UNTOUCHED).all() for view in views))


def disagree(group: Group, path: Path) -> None:
    """As many experts on every rank, but not the same ones."""
    checkpoint = Checkpoint.open(path)
    placement = Placement("expert", 5, group.tp, (0, 1, 0, 1, 0) if group.rank else (0, 0, 0, 1, 1))
    with Transport(group, checkpoint.layout(1), num_experts=3) as transport:
        writer = checkpoint_writer(checkpoint, 1, group.tp, placement) if group.rank == 0 else None
        transport.load(1, 1, placement, writer)
