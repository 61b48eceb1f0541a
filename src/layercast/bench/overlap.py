"""How much of the copies is hidden behind a model's computing, by `LayerStream`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from layercast.bench import ranks
from layercast.checkpoint import Placement
from layercast.geometry import ExpertLayout, Kind
from layercast.group import Group
from layercast.launch import launch
from layercast.sources import HostViews
from layercast.stream import LayerStream
from layercast.writers import Writer

if TYPE_CHECKING:
    from layercast.bench.measures import Bench, Line

_EXPERTS, _BYTES, _RATE = 16, 4_500_000, 1e9  # 72 ms a layer: as glm-5-next at tp 4 on 25 GB/s
_LAYERS = 10


class _FreeSource:
    """Layers whose writer costs nothing: what is left is the bus and the stream."""

    name = "bench"
    layers = tuple(range(_LAYERS))
    num_experts = _EXPERTS

    def experts(self, layer: int) -> int:
        return _EXPERTS

    def placement(self, layer: int, tp: int) -> Placement:
        return Placement("tensor", _EXPERTS, tp)

    def layout(self, tp: int) -> ExpertLayout:
        return ExpertLayout((Kind("w13", (_BYTES,), "uint8"),), 1, 1, 1, "bench", (1, 1))

    def writer(self, layer: int, tp: int) -> Writer:
        return ranks.free_writer()

    def wrong_experts(self, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
        raise NotImplementedError("the bus moves no bytes")


def overlapped(group: Group, compute_s: float, depth: int, chunks: int) -> float:
    """Seconds per layer of a model that computes for `compute_s` in each; the first layer is not counted."""
    device = f"link:{_RATE / 1e9}GB/s,move=no"
    with LayerStream(_FreeSource(), group, device, depth) as stream:
        group.barrier("open")
        start, used = 0.0, 0
        for _ in range(chunks):
            for layer in stream.layers:
                with stream.layer(layer):
                    time.sleep(compute_s)  # as a model on a GPU: neither core nor GIL
                start = start or time.monotonic()  # the first layer is over
                used += 1
        return (time.monotonic() - start) / (used - 1)


def overlap(bench: Bench) -> Iterator[Line]:
    """Compute C and copy X per layer, two device layers: the longer of the two is what a layer should take."""
    from layercast.bench.measures import Line

    copy_s = _EXPERTS * _BYTES / _RATE
    for tp in [number for number in bench.tp if number <= 2]:
        for share in (0.5, 1.0, 2.0):
            seconds = max(launch(overlapped, tp, args=(share * copy_s, 2, bench.scaled(4, 2))))
            yield Line(
                "overlap",
                f"C/X {share:g}, tp {tp}",
                seconds * 1e3,
                "ms/layer",
                max(share, 1.0) * copy_s * 1e3,
                "max(C, X)",
                "less",
            )
