"""What was found in a checkpoint, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from layercast.errors import GeometryError
from layercast.geometry import ExpertLayout

if TYPE_CHECKING:
    from layercast.checkpoint.checkpoint import Checkpoint

RANKS = range(1, 9)
"""The T for which `describe` gives bytes."""

_NAMES_SHOWN = 10


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """See `Checkpoint.describe`."""
    index, survey = checkpoint.opened(), checkpoint.survey
    whole = checkpoint.layout(1)
    return {
        "path": str(checkpoint.path),
        "model_type": checkpoint.model_type,
        "family": checkpoint.family,
        "format": checkpoint.format,
        "formats": spans((layer, checkpoint.layer(layer).form.name) for layer in checkpoint.layers),
        "block": list(whole.block),
        "hidden_size": checkpoint.hidden_size,
        "intermediate_size": checkpoint.intermediate_size,
        "num_experts": checkpoint.num_experts,
        "experts": spans((layer, checkpoint.experts(layer)) for layer in checkpoint.layers),
        "layers": {"first": checkpoint.layers[0], "last": checkpoint.layers[-1], "count": len(checkpoint.layers)},
        "prediction_layers": [
            layer for layer in sorted(survey.experts) if layer in checkpoint.config_layers.prediction
        ],
        "naming": survey.naming.example(),
        "name_prefix": survey.prefix,
        "kinds": {kind.name: {"shape": list(kind.shape), "dtype": kind.dtype} for kind in whole.kinds},
        "expert_bytes": whole.nbytes,
        "layer_bytes": whole.nbytes * checkpoint.num_experts,
        "tp": [ranks for ranks in RANKS if isinstance(_layout(checkpoint, ranks), ExpertLayout)],
        "per_tp": [_per_tp(checkpoint, ranks) for ranks in RANKS],
        "files": len(index.files),
        "file_bytes": sum(file.nbytes for file in index.files),
        "tensors": len(index),
        "not_understood": {"count": len(survey.left_out), "names": sorted(survey.left_out)[:_NAMES_SHOWN]},
    }


def spans(values: Iterable[tuple[int, Any]]) -> list[dict[str, Any]]:
    """Layers with the same value, one after the other in the list of MoE layers, as first, last and value."""
    found = []
    for value, group in groupby(values, key=lambda item: item[1]):
        layers = [layer for layer, _ in group]
        found.append({"first": layers[0], "last": layers[-1], "count": len(layers), "value": value})
    return found


def _layout(checkpoint: Checkpoint, ranks: int) -> ExpertLayout | str:
    """The layout that takes most bytes of the layers', or why there is none."""
    try:
        layers = {checkpoint.layer(layer).form.name: layer for layer in checkpoint.layers}
        return max((checkpoint.layout(ranks, layer=layer) for layer in layers.values()), key=lambda item: item.nbytes)
    except GeometryError as error:
        return error.message


def _per_tp(checkpoint: Checkpoint, ranks: int) -> dict[str, Any]:
    found = _layout(checkpoint, ranks)
    if isinstance(found, str):
        return {"tp": ranks, "refused": found}
    each = [checkpoint.layout(ranks, layer=layer).nbytes * checkpoint.experts(layer) for layer in checkpoint.layers]
    return {
        "tp": ranks,
        "expert_bytes": found.nbytes,
        "layer_bytes": max(each),
        "bytes": sum(each),
        "kinds": {kind.name: list(kind.shape) for kind in found.kinds},
    }
