"""A checkpoint on disk: opened and checked as a whole, then read layer by layer without copies."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.blocks import BlockTemplate, LayerBlocks, read_addresses, reference
from layercast.checkpoint.config import ModelConfig
from layercast.checkpoint.describe import describe
from layercast.checkpoint.detect import Declared, declared_format, is_left_out
from layercast.checkpoint.experts import Layer, choose_layers, locate_layer, survey_names
from layercast.checkpoint.families import detect_family
from layercast.checkpoint.index import TensorIndex
from layercast.checkpoint.placement import Placement, PlacementKind, resolve
from layercast.errors import CheckpointError, GeometryError, StateError
from layercast.geometry import ExpertLayout, OffGrid


class Checkpoint:
    """The experts of a safetensors checkpoint. Made by `Checkpoint.open`; a context manager.

    Attributes: `path`, `family` and `format` (names; the format is that of most layers), `model_type`,
    `layers` (ids of the MoE layers, ascending), `num_experts` (the most that a layer has), `hidden_size` (H),
    `intermediate_size` (I of one expert), `off_grid`.
    """

    def __init__(
        self, path: Path, index: TensorIndex, *, prediction_layers: bool = False, off_grid: OffGrid = "refuse"
    ) -> None:
        config = ModelConfig.read(index.directory)
        family = detect_family(config, index)
        self.survey = survey_names(index, family)
        declared = declared_format(config)
        self.config_layers = family.moe_layers(config)
        self._index: TensorIndex | None = index
        self._templates: dict[object, BlockTemplate] = {}
        self.path = path
        self.off_grid = off_grid
        self.family = family.name
        self.model_type = config.model_types[0]
        self.hidden_size = config.integer("hidden_size", minimum=1)
        self.intermediate_size = config.integer(family.inner_key, minimum=1)
        self.layers = choose_layers(self.survey, self.config_layers, prediction_layers=prediction_layers)
        counts = family.num_experts(config)
        sizes = (self.hidden_size, self.intermediate_size)
        self._layers = {
            layer: locate_layer(index, family, self.survey, layer, counts, declared, sizes) for layer in self.layers
        }
        if not self._layers:
            raise CheckpointError(f"{path}: by config.json no layer is MoE", reason="layers_disagree")
        self.num_experts = max(layer.experts for layer in self._layers.values())
        self._main = self._main_layer(config, declared)
        self.format = self._main.form.name

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, prediction_layers: bool = False, off_grid: OffGrid = "refuse"
    ) -> Checkpoint:
        """Open the directory (or single .safetensors file) `path`, with config.json beside the weights.

        Every file's header and length, every tensor's place, and dtype and shape of every expert tensor are
        checked here. `prediction_layers` adds the layers behind the last one that only predict further
        tokens. `off_grid`: what becomes of a T whose slices end inside a block; see `expert_layout`. Raises
        CheckpointError, whose `reason` is a stable word for the kind of fault.
        """
        where = Path(path)
        return cls(where, TensorIndex.open(where), prediction_layers=prediction_layers, off_grid=off_grid)

    def close(self) -> None:
        """Let go of the files. They are unmapped once no LayerBlocks and no array of them is left."""
        self._index = None
        self._layers = {number: layer.closed() for number, layer in self._layers.items()}
        self._main = self._main.closed()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {self.family}, {self.format}, {len(self.layers)} layers)"

    def experts(self, layer: int) -> int:
        """Number of experts of a MoE layer. CheckpointError where `layer` is none."""
        return self.layer(layer).experts

    def layer_format(self, layer: int) -> str:
        """Name of the format that a MoE layer's experts are in. CheckpointError where `layer` is none."""
        return self.layer(layer).form.name

    def layout(
        self, tp: int, *, layer: int | None = None, placement: PlacementKind | Placement = "tensor"
    ) -> ExpertLayout:
        """What one expert is on one of `tp` ranks; GeometryError names the T that work where not.

        `layer`: of a layer in another format than most; None: of those in `format`. With placement "expert"
        each expert is whole.
        """
        form = self._main.form if layer is None else self.layer(layer).form
        kind = placement.kind if isinstance(placement, Placement) else placement
        parts = tp if kind == "tensor" else 1
        return form.layout(self.hidden_size, self.intermediate_size, parts, self.off_grid)

    def require_layer(self, layer: int) -> None:
        """Raise CheckpointError (reason "not_moe"), saying what `layer` is, unless it is one of `layers`."""
        if layer in self._layers:
            return
        total = self.config_layers.prediction.start
        if layer in self.config_layers.prediction:
            fault = f"layer {layer} is a prediction layer, behind the model's {total} layers"
        elif 0 <= layer < total:
            fault = f"layer {layer} is dense: it has no experts"
        else:
            fault = f"layer {layer} does not exist: the model has layers 0 to {total - 1}"
        raise CheckpointError(
            f"{self.path}: {fault}",
            reason="not_moe",
            hint=f"MoE layers: {self.layers[0]} to {self.layers[-1]}, {len(self.layers)} of them",
        )

    def layer(self, layer: int) -> Layer:
        """A MoE layer as it was found. CheckpointError where `layer` is none."""
        self.require_layer(layer)
        return self._layers[layer]

    def blocks(self, layer: int, ranks: int, *, placement: PlacementKind | Placement = "tensor") -> LayerBlocks:
        """The layer's bytes for `ranks` ranks as blocks of mapped memory; see LayerBlocks and Placement.

        w13 is gate's rows, then up's; scales and biases likewise; w2 and its scale are column slices. Raises
        CheckpointError (a layer that is not MoE; a file whose length changed), GeometryError (a number of
        ranks that does not work), StateError (closed).
        """
        index = self.opened()
        found = self.layer(layer)
        for file in index.files:
            file.check_unchanged()
        where = resolve(placement, found.experts, ranks)
        layout = self.layout(ranks, layer=layer, placement=where)
        # layers whose matrices lie alike are cut alike
        key = (layout, tuple((operand.role, operand.strides, operand.dtype) for operand in found.operands))
        if key not in self._templates:
            self._templates[key] = BlockTemplate(found, layout)
        addresses, made = read_addresses(found, layout)
        return self._templates[key].fill(layer, addresses, layout, where, (index, made))

    def reference(
        self, layer: int, expert: int, rank: int, tp: int, *, placement: PlacementKind | Placement = "tensor"
    ) -> dict[str, NDArray[np.uint8]]:
        """The bytes of one expert on one rank, kind -> uint8 [nbytes], copied with numpy's indexing.

        Slow, and without the arithmetic of `blocks`: to verify with. Raises as `blocks` does, and
        GeometryError for an expert or rank that does not exist, or an expert that the rank does not own.
        """
        self.opened()
        found = self.layer(layer)
        layout = self.layout(tp, layer=layer, placement=placement)
        for name, value, size in (("expert", expert, found.experts), ("rank", rank, tp)):
            if not 0 <= value < size:
                raise GeometryError(f"{name} {value} does not exist", hint=f"{name}s: 0 to {size - 1}")
        where = resolve(placement, found.experts, tp)
        if expert not in where.experts_of(rank):
            raise GeometryError(f"rank {rank} holds nothing of expert {expert}", hint="see Placement.experts_of")
        return reference(found, layout, expert, where.part_of(rank))

    def describe(self) -> dict[str, Any]:
        """Facts about the checkpoint, ready for JSON.

        Sizes in bytes; `formats` and `experts` as spans of layers with one value; `per_tp`: for T of 1 to 8
        bytes of an expert, of the largest layer and of all layers on a rank, or why it is refused;
        `not_understood`: tensors beside the experts' that are left out.
        """
        return describe(self)

    def opened(self) -> TensorIndex:
        """The tensors; StateError where the checkpoint is closed."""
        if self._index is None:
            raise StateError(f"checkpoint {self.path} is closed", hint="call inside the with block, or open it again")
        return self._index

    def _main_layer(self, config: ModelConfig, declared: Declared) -> Layer:
        """A layer in the declared format, or in that of most layers where config.json leaves the experts out."""
        layers = list(self._layers.values())
        if declared.form is not None:
            for layer in layers:
                if layer.form.name == declared.form.name:
                    return layer
            name = self.survey.naming.module_of(self.survey.prefix, layers[0].number)
            if not is_left_out(config, name):
                raise CheckpointError(
                    f"{config.path} declares {declared.words}, but no layer's experts are: "
                    f"{name} is {layers[0].form.name}",
                    reason="format_disagrees",
                    hint="config.json and weights are of different models, or modules_to_not_convert is incomplete",
                )
        (most, _), *_ = Counter(layer.form.name for layer in layers).most_common(1)
        return next(layer for layer in layers if layer.form.name == most)
