"""A checkpoint on disk: opened and checked as a whole, then read layer by layer without copies."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.blocks import BlockTemplate, LayerBlocks
from layercast.checkpoint.config import ModelConfig
from layercast.checkpoint.experts import choose_layers, locate_experts, survey_names
from layercast.checkpoint.families import detect_family
from layercast.checkpoint.formats import detect_format
from layercast.checkpoint.index import TensorIndex
from layercast.errors import CheckpointError, GeometryError, StateError
from layercast.geometry import ExpertLayout


class Checkpoint:
    """The experts of a safetensors checkpoint. Made by `Checkpoint.open`; a context manager.

    Attributes: `path`, `family` and `format` (names), `model_type`, `layers` (ids of the MoE layers,
    ascending), `num_experts` (per layer), `hidden_size` (H), `intermediate_size` (I of one expert).
    """

    def __init__(self, path: Path, index: TensorIndex, *, prediction_layers: bool = False) -> None:
        config = ModelConfig.read(index.directory)
        self._family = detect_family(config, index)
        self._survey = survey_names(index, self._family)
        self._format = detect_format(config)
        self._config_layers = self._family.moe_layers(config)
        self._index: TensorIndex | None = index
        self._templates: dict[int, BlockTemplate] = {}
        self.path = path
        self.family = self._family.name
        self.format = self._format.name
        self.model_type = config.model_types[0]
        self.hidden_size = config.integer("hidden_size", minimum=1)
        self.intermediate_size = config.integer("moe_intermediate_size", minimum=1)
        self.num_experts = self._family.num_experts(config)
        self.layers = choose_layers(self._survey, self._config_layers, prediction_layers=prediction_layers)
        self._sources = self._format.sources(self.hidden_size, self.intermediate_size)
        self._addresses = locate_experts(
            index, self._family, self._survey, self.layers, self.num_experts, self._sources
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, prediction_layers: bool = False) -> Checkpoint:
        """Open the directory (or single .safetensors file) `path`, with config.json beside the weights.

        Every file's header and length, every tensor's place, and dtype and shape of every expert tensor are
        checked here. `prediction_layers` adds the layers behind the last one that only predict further
        tokens. Raises CheckpointError, whose `reason` is a stable word for the kind of fault.
        """
        where = Path(path)
        return cls(where, TensorIndex.open(where), prediction_layers=prediction_layers)

    def close(self) -> None:
        """Let go of the files. They are unmapped once no LayerBlocks and no array of them is left."""
        self._index = None

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
        self.require_layer(layer)
        return len(self._addresses[layer])

    def layout(self, tp: int) -> ExpertLayout:
        """What one expert is on one of `tp` ranks; GeometryError names the T that work where not."""
        return self._format.layout(self.hidden_size, self.intermediate_size, tp)

    def require_layer(self, layer: int) -> None:
        """Raise CheckpointError (reason "not_moe"), saying what `layer` is, unless it is one of `layers`."""
        if layer in self._addresses:
            return
        total = self._config_layers.prediction.start
        if layer in self._config_layers.prediction:
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

    def blocks(self, layer: int, tp: int) -> LayerBlocks:
        """The layer's bytes for `tp` ranks as blocks of mapped memory; see LayerBlocks.

        w13 is gate's rows, then up's; scales likewise; w2 and its scale are column slices. Raises
        CheckpointError (a layer that is not MoE; a file whose length changed), GeometryError (a `tp` that
        does not work), StateError (closed).
        """
        index = self._opened()
        self.require_layer(layer)
        for file in index.files:
            file.check_unchanged()
        if tp not in self._templates:
            self._templates[tp] = BlockTemplate(self._format, self.layout(tp))
        return self._templates[tp].fill(layer, self._addresses[layer], index)

    def reference(self, layer: int, expert: int, rank: int, tp: int) -> dict[str, NDArray[np.uint8]]:
        """The bytes of one expert on one rank, kind -> uint8 [nbytes], copied by plain slicing.

        Slow and independent of `blocks`: to verify with. Raises as `blocks` does, and GeometryError for an
        expert or rank that does not exist.
        """
        index = self._opened()
        layout = self.layout(tp)
        for name, value, size in (("expert", expert, self.experts(layer)), ("rank", rank, tp)):
            if not 0 <= value < size:
                raise GeometryError(f"{name} {value} does not exist", hint=f"{name}s: 0 to {size - 1}")
        names = [
            self._family.tensor(self._survey.prefix, layer, expert, source.projection, source.suffix)
            for source in self._sources
        ]
        return self._format.reference([index.bytes_of(name) for name in names], layout, rank)

    def describe(self) -> dict[str, Any]:
        """Facts about the checkpoint, ready for JSON: sizes in bytes, layers as first, last and count."""
        index = self._opened()
        whole = self.layout(1)
        return {
            "path": str(self.path),
            "model_type": self.model_type,
            "family": self.family,
            "format": self.format,
            "block": list(whole.block),
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_experts": self.num_experts,
            "layers": {"first": self.layers[0], "last": self.layers[-1], "count": len(self.layers)},
            "prediction_layers": [layer for layer in self._config_layers.prediction if layer in self._survey.experts],
            "name_prefix": self._survey.prefix,
            "kinds": {kind.name: {"shape": list(kind.shape), "dtype": kind.dtype} for kind in whole.kinds},
            "expert_bytes": whole.nbytes,
            "layer_bytes": whole.nbytes * self.num_experts,
            "tp": list(self._format.ranks_that_work(self.intermediate_size)),
            "files": len(index.files),
            "file_bytes": sum(file.nbytes for file in index.files),
            "tensors": len(index),
        }

    def _opened(self) -> TensorIndex:
        if self._index is None:
            raise StateError(f"checkpoint {self.path} is closed", hint="call inside the with block, or open it again")
        return self._index
