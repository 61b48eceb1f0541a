"""Where a whole model's experts come from: a checkpoint, or a synthetic shape that needs no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from layercast import _native
from layercast.checkpoint import Checkpoint, Placement
from layercast.checkpoint.placement import PlacementKind
from layercast.errors import ConfigError
from layercast.geometry import SHAPES, ExpertLayout
from layercast.writers import Writer, checkpoint_writer, pattern_writer

#: The device layer in host memory: per kind uint8 [experts, bytes].
HostViews = Sequence[npt.NDArray[np.uint8]]


class LayerSource(Protocol):
    """Layers of experts, cut for any number of ranks."""

    name: str

    @property
    def layers(self) -> Sequence[int]:
        """The MoE layers, in the model's order."""
        ...

    @property
    def num_experts(self) -> int:
        """The most experts that a layer has."""
        ...

    def experts(self, layer: int) -> int:
        """Experts of this layer."""
        ...

    def placement(self, layer: int, tp: int) -> Placement:
        """Which of `tp` ranks gets what of which expert of this layer."""
        ...

    def layout(self, tp: int) -> ExpertLayout:
        """One expert's share per rank. Raises GeometryError."""
        ...

    def writer(self, layer: int, tp: int) -> Writer:
        """What rank 0 runs for this layer."""
        ...

    def wrong_experts(self, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
        """Experts whose bytes in the device layer differ from the source's, read again."""
        ...


def positions(source: LayerSource, tp: int) -> int:
    """The most experts that a rank holds of a layer: `num_experts` of its transport."""
    return max(source.placement(layer, tp).positions for layer in source.layers)


class CheckpointSource:
    """The experts of a checkpoint.

    `placement`: "tensor" cuts each over all ranks, "expert" gives each rank whole ones.
    """

    def __init__(self, checkpoint: Checkpoint, placement: PlacementKind = "tensor") -> None:
        self.checkpoint = checkpoint
        self._kind: PlacementKind = placement
        self.name = str(checkpoint.path)

    @property
    def layers(self) -> Sequence[int]:
        """The checkpoint's MoE layers."""
        return self.checkpoint.layers

    @property
    def num_experts(self) -> int:
        """The most experts that a layer has."""
        return self.checkpoint.num_experts

    def experts(self, layer: int) -> int:
        """Experts of this layer."""
        return self.checkpoint.experts(layer)

    def placement(self, layer: int, tp: int) -> Placement:
        """As even as can be, expert after expert, where ranks own whole ones."""
        return Placement(self._kind, self.experts(layer), tp)

    def layout(self, tp: int) -> ExpertLayout:
        """See `Checkpoint.layout`."""
        return self.checkpoint.layout(tp, placement=self._kind)

    def writer(self, layer: int, tp: int) -> Writer:
        """Slices straight from the mapped files. Raises ConfigError for a layer in another format than most."""
        seen = self.checkpoint.layer_format(layer)
        if seen != self.checkpoint.format:
            raise ConfigError(
                f"{self.name}: layer {layer} is {seen}, the others are {self.checkpoint.format}",
                hint="a transport has one layout; give such layers one of their own: checkpoint.layout(tp, layer=...)",
            )
        return checkpoint_writer(self.checkpoint, layer, tp, self._kind)

    def wrong_experts(self, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
        """Compares with slices that numpy cuts from the files."""
        wrong = []
        for position, expert in enumerate(self.placement(layer, tp).experts_of(rank)):
            reference = self.checkpoint.reference(layer, expert, rank, tp, placement=self._kind).values()
            if not all(np.array_equal(view[position], kind) for view, kind in zip(views, reference, strict=True)):
                wrong.append(expert)
        return wrong


@dataclass
class SyntheticSource:
    """A real model's shape with bytes that only their place determines; see `layercast.geometry.SHAPES`."""

    name: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in SHAPES:
            raise ConfigError(f"no synthetic shape {self.name!r}", hint=f"there are {', '.join(SHAPES)}")
        self._shape = SHAPES[self.name]

    @property
    def layers(self) -> Sequence[int]:
        """The shape's MoE layers."""
        return self._shape.layers

    @property
    def num_experts(self) -> int:
        """Experts per layer."""
        return self._shape.experts

    def experts(self, layer: int) -> int:
        """The same in every layer."""
        return self._shape.experts

    def placement(self, layer: int, tp: int) -> Placement:
        """Every expert is cut over all ranks."""
        return Placement("tensor", self._shape.experts, tp)

    def layout(self, tp: int) -> ExpertLayout:
        """Block-FP8."""
        return self._shape.layout(tp)

    def writer(self, layer: int, tp: int) -> Writer:
        """A pattern writer; it needs no memory of its own."""
        return pattern_writer(self.seed)

    def wrong_experts(self, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
        """Computes the pattern again; names the first wrong expert only."""
        wrong, first = _native.count_wrong_pattern(
            self.seed,
            layer,
            rank,
            self.experts(layer),
            list(self.layout(tp).sizes),
            [view.ctypes.data for view in views],
        )
        return [first] * bool(wrong)
