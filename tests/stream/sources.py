"""A small source whose bytes only their place determines, and what checks a layer's views against it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping

from layercast import Arena, LayerWeights, _native
from layercast.checkpoint import Placement
from layercast.geometry import ExpertLayout, Kind
from layercast.writers import Writer, pattern_writer

SEED = 11
LAYOUT = ExpertLayout(
    (
        Kind("w13", (64, 33), "float8_e4m3fn"),
        Kind("w13_scale", (2, 3), "float32", (32, 11)),
        Kind("w2", (33, 32), "float8_e4m3fn"),
        Kind("w2_scale", (3, 1), "float32", (11, 32)),
    ),
    33,
    32,
    1,
    "fp8_block",
    (32, 11),
)


class TinySource:
    """Layers by number -> how many experts; `slow_s` and `fail` as tests need them."""

    name = "tiny"

    def __init__(self, experts: Mapping[int, int]) -> None:
        self._experts = dict(experts)

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(self._experts)

    @property
    def num_experts(self) -> int:
        return max(self._experts.values())

    def experts(self, layer: int) -> int:
        return self._experts[layer]

    def placement(self, layer: int, tp: int) -> Placement:
        return Placement("tensor", self._experts[layer], tp)

    def layout(self, tp: int) -> ExpertLayout:
        return LAYOUT

    def writer(self, layer: int, tp: int) -> Writer:
        return pattern_writer(SEED)

    def wrong_experts(self, layer: int, rank: int, tp: int, views) -> list[int]:
        raise NotImplementedError


def wrong(weights: LayerWeights, rank: int) -> int:
    """How many experts of a layer hold other bytes than the source's."""
    addresses = [view.address for view in weights.values()]
    return _native.count_wrong_pattern(SEED, weights.layer, rank, weights.num_experts, list(LAYOUT.sizes), addresses)[0]


class Expected:
    """The bytes of every expert, by another way."""

    def __init__(self, source: TinySource, rank: int, tp: int) -> None:
        self._arena = Arena(source, rank, tp)

    def wrong(self, weights: LayerWeights, experts: Iterable[int]) -> list[int]:
        """Which of these experts hold other bytes."""
        addresses = self._arena.addresses(weights.layer)
        found = []
        for expert in experts:
            for view, address, size in zip(weights.values(), addresses, LAYOUT.sizes, strict=True):
                seen = ctypes.string_at(view.address + expert * size, size)
                if seen != ctypes.string_at(address + expert * size, size):
                    found.append(expert)
                    break
        return found
