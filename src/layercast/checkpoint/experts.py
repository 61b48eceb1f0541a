"""Where every expert's tensors are: names held against config.json, dtypes and shapes against the format.

Reasons of CheckpointError raised here: naming, unmatched_names, prefix, layers_disagree, prediction_layers,
experts, missing_scale, missing_tensor, layer_dtype, scale_dtype, tensor_shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.cuts import Source
from layercast.checkpoint.families import Family, MoeLayers, samples
from layercast.checkpoint.index import TensorIndex
from layercast.errors import CheckpointError

_SHOWN = 3


@dataclass(frozen=True)
class Survey:
    """What the names say: the prefix of the language model's layers, and per layer its experts' ids."""

    prefix: str
    experts: Mapping[int, set[int]]


def choose_layers(survey: Survey, config_layers: MoeLayers, *, prediction_layers: bool) -> tuple[int, ...]:
    """The MoE layers to read, ascending. CheckpointError where config.json and the names disagree."""
    _check_layers(config_layers, survey.experts)
    if not prediction_layers:
        return config_layers.base
    present = tuple(layer for layer in config_layers.prediction if layer in survey.experts)
    if not present:
        raise CheckpointError(
            f"prediction layers are asked for; by config.json they are "
            f"{_ranges(config_layers.prediction)}, the tensors hold none",
            reason="prediction_layers",
            hint="open the checkpoint without prediction layers",
        )
    return config_layers.base + present


def locate_experts(
    index: TensorIndex,
    family: Family,
    survey: Survey,
    layers: Iterable[int],
    num_experts: int,
    sources: tuple[Source, ...],
) -> dict[int, NDArray[np.uint64]]:
    """Find and check every tensor of the experts of `layers`. Raises CheckpointError, reasons above.

    Returns per layer the tensors' virtual addresses, uint64 of shape [num_experts, sources].
    """
    addresses = {}
    missing: list[str] = []
    for layer in layers:
        _check_experts(layer, survey.experts[layer], num_experts)
        names = [
            [family.tensor(survey.prefix, layer, expert, source.projection, source.suffix) for source in sources]
            for expert in range(num_experts)
        ]
        addresses[layer] = _locate(index, layer, names, sources, missing)
    _refuse_missing(index, missing)
    return addresses


def survey_names(index: TensorIndex, family: Family) -> Survey:
    """Sort the tensors' names by prefix, layer and expert. CheckpointError where some fit no known naming."""
    parsed = family.parse(index)
    if not parsed:
        wanted = family.tensor("model.", 0, 0, "gate", "weight").replace(".0.", ".N.")
        raise CheckpointError(
            f"no tensor is named as family {family.name} names experts ({wanted}); {samples(index)}",
            reason="naming",
            hint="supported: one tensor per expert and projection",
        )
    strange = sorted(name for name in index if ".experts." in name and name not in parsed)
    if strange:
        raise CheckpointError(
            f"expert tensors named unlike the others ({len(strange)}): {_shown(strange)}",
            reason="unmatched_names",
            hint="a checkpoint with two layouts at once cannot be read; keep one of them",
        )
    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name in parsed.values():
        found[name.prefix][name.layer].add(name.expert)
    # multi-token prediction modules under a prefix of their own are no layers of the model
    prefixes = sorted(prefix for prefix in found if "mtp." not in prefix)
    if len(prefixes) != 1:
        seen = prefixes or sorted(found)
        raise CheckpointError(
            f"experts lie under {len(prefixes)} prefixes, expected one: {_shown(map(repr, seen))}",
            reason="prefix",
        )
    return Survey(prefixes[0], dict(found[prefixes[0]]))


def _check_layers(config_layers: MoeLayers, present: Iterable[int]) -> None:
    named = sorted(set(present) - set(config_layers.prediction))
    if tuple(named) == config_layers.base:
        return
    only_config = sorted(set(config_layers.base) - set(named))
    only_names = sorted(set(named) - set(config_layers.base))
    raise CheckpointError(
        f"config.json makes layers {_ranges(config_layers.base)} MoE, the tensors hold experts of layers "
        f"{_ranges(named)}; only in config.json: {_ranges(only_config)}, only among the tensors: "
        f"{_ranges(only_names)}",
        reason="layers_disagree",
        hint="config.json and weights are of different models, or the download is incomplete",
    )


def _check_experts(layer: int, present: set[int], num_experts: int) -> None:
    missing = sorted(set(range(num_experts)) - present)
    beyond = sorted(present - set(range(num_experts)))
    if missing or beyond:
        raise CheckpointError(
            f"layer {layer}: config.json gives experts 0 to {num_experts - 1}; missing: {_ranges(missing)}, "
            f"beyond: {_ranges(beyond)}",
            reason="experts",
            hint="config.json and weights are of different models, or the download is incomplete",
        )


def _locate(
    index: TensorIndex,
    layer: int,
    names: Sequence[Sequence[str]],
    sources: tuple[Source, ...],
    missing: list[str],
) -> NDArray[np.uint64]:
    addresses = np.zeros((len(names), len(sources)), dtype=np.uint64)
    for expert, row in enumerate(names):
        for position, (name, source) in enumerate(zip(row, sources, strict=True)):
            info = index.find(name)
            if info is None:
                missing.append(name)
                continue
            if info.dtype != source.dtype:
                raise _wrong_dtype(layer, name, info.dtype, source)
            if info.shape != source.shape:
                raise CheckpointError(
                    f"{name} has shape {list(info.shape)}, config.json makes it {list(source.shape)}",
                    reason="tensor_shape",
                    hint="hidden_size, moe_intermediate_size or weight_block_size do not fit the weights",
                )
            addresses[expert, position] = index.address_of(name)
    return addresses


def _wrong_dtype(layer: int, name: str, seen: str, source: Source) -> CheckpointError:
    if source.suffix == "weight":
        return CheckpointError(
            f"layer {layer} is not in the checkpoint's format: {name} is {seen}, expected {source.dtype}",
            reason="layer_dtype",
            hint=f"all experts of all layers must be {source.dtype}; quantise layer {layer} as well",
        )
    return CheckpointError(
        f"{name} is {seen}, expected {source.dtype} (layer {layer})",
        reason="scale_dtype",
        hint=f"only {source.dtype} scales are read; convert the scales",
    )


def _refuse_missing(index: TensorIndex, missing: list[str]) -> None:
    if not missing:
        return
    scales = [name for name in missing if not name.endswith(".weight")]
    if len(scales) < len(missing):
        raise CheckpointError(
            f"missing expert tensors ({len(missing)}): {_shown(missing)}",
            reason="missing_tensor",
            hint="the checkpoint is incomplete; fetch it again",
        )
    channel = scales[0].removesuffix("_inv") in set(index)
    raise CheckpointError(
        f"missing scales ({len(scales)}): {_shown(scales)}",
        reason="missing_scale",
        hint="there is a scale without _inv, as other formats have" if channel else "the checkpoint is incomplete",
    )


def _shown(items: Iterable[str]) -> str:
    every = list(items)
    return ", ".join(every[:_SHOWN]) + (", ..." if len(every) > _SHOWN else "")


def _ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as people write them: 3 to 44, 46; `none` where there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return ", ".join(words[:20]) + (", ..." if len(words) > 20 else "") or "none"
