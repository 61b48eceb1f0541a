"""Where the experts are: names sorted by layer and held against config.json.

Reasons of CheckpointError raised here: naming, unmatched_names, prefix, layers_disagree, prediction_layers,
experts; and those of `detect` and `checks`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from layercast.checkpoint.checks import ranges, shown
from layercast.checkpoint.detect import Declared, layer_format
from layercast.checkpoint.families import Family, MoeLayers, samples
from layercast.checkpoint.formats import Format
from layercast.checkpoint.index import TensorIndex
from layercast.checkpoint.naming import ExpertName, Naming, Operand, Place
from layercast.errors import CheckpointError

_LEFT_OUT = 200
"""How many names of tensors that are not understood are kept, to be shown."""


@dataclass(frozen=True)
class Survey:
    """What the names say: the naming, the prefix of the language model's layers, per layer its experts.

    `experts`: layer -> ids; of fused tensors, all below their first size. `suffixes`: layer ->
    keyword -> what names of the layer end with. `left_out`: names beside the experts' known tensors.
    """

    naming: Naming
    prefix: str
    experts: Mapping[int, set[int] | range]
    suffixes: Mapping[int, Mapping[str, str]]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """A MoE layer, found and checked: its format and the operands of its experts."""

    number: int
    experts: int
    form: Format
    operands: tuple[Operand, ...]

    def closed(self) -> Layer:
        """The same without its tensors, which keep files mapped."""
        return replace(self, operands=())


def choose_layers(survey: Survey, config_layers: MoeLayers, *, prediction_layers: bool) -> tuple[int, ...]:
    """The MoE layers to read, ascending. CheckpointError where config.json and the names disagree."""
    _check_layers(config_layers, survey.experts)
    if not prediction_layers:
        return config_layers.base
    present = tuple(layer for layer in sorted(survey.experts) if layer in config_layers.prediction)
    if not present:
        raise CheckpointError(
            f"prediction layers are asked for; by config.json they are "
            f"{_span(config_layers.prediction)}, the tensors hold none",
            reason="prediction_layers",
            hint="open the checkpoint without prediction layers",
        )
    return config_layers.base + present


def survey_names(index: TensorIndex, family: Family) -> Survey:
    """Sort the tensors' names by prefix, layer and expert. CheckpointError where some fit no known naming."""
    found = {naming: _parse(index, naming) for naming in family.namings}
    naming = max(family.namings, key=lambda naming: len(found[naming]))
    parsed = found[naming]
    if not parsed:
        wanted = " or ".join(naming.example() for naming in family.namings)
        raise CheckpointError(
            f"no tensor is named as family {family.name} names experts ({wanted}); {samples(index)}",
            reason="naming",
            hint="model_type in config.json and the tensors' names are of different families",
        )
    strange = sorted(name for name in index if ".experts." in name and name not in parsed)
    if strange:
        raise CheckpointError(
            f"expert tensors named unlike the others ({len(strange)}): {shown(strange)}",
            reason="unmatched_names",
            hint="a checkpoint with two layouts at once cannot be read; keep one of them",
        )
    # multi-token prediction modules under a prefix of their own are no layers of the model
    every = {name.prefix for name in parsed.values()}
    prefixes = sorted(prefix for prefix in every if "mtp." not in prefix)
    if len(prefixes) != 1:
        seen = prefixes or sorted(every)
        raise CheckpointError(
            f"experts lie under {len(prefixes)} prefixes, expected one: {shown(list(map(repr, seen)))}",
            reason="prefix",
        )
    return _sort(index, naming, prefixes[0], parsed, family.biases)


def _parse(index: TensorIndex, naming: Naming) -> dict[str, ExpertName]:
    found = ((name, naming.parse(name)) for name in index if ".experts." in name)
    return {name: parts for name, parts in found if parts is not None}


def _sort(index: TensorIndex, naming: Naming, prefix: str, parsed: Mapping[str, ExpertName], biases: bool) -> Survey:
    single: dict[int, set[int]] = defaultdict(set)
    fused: dict[int, range] = {}
    suffixes: dict[int, dict[str, str]] = defaultdict(dict)
    left_out: list[str] = []
    for name, parts in parsed.items():
        if parts.prefix != prefix:
            continue
        if parts.keyword is None or (parts.keyword == "bias" and not biases):
            left_out.append(name)
            continue
        if parts.expert >= 0:
            single[parts.layer].add(parts.expert)
        elif (info := index.find(name)) is not None and info.shape:
            fused[parts.layer] = range(max(info.shape[0], fused.get(parts.layer, range(0)).stop))
        if parts.keyword not in suffixes[parts.layer]:
            suffixes[parts.layer][parts.keyword] = naming.suffix_of(name)
    return Survey(naming, prefix, {**single, **fused}, dict(suffixes), tuple(left_out))


def _span(layers: range) -> str:
    return "none" if not layers else str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def _check_layers(config_layers: MoeLayers, present: Iterable[int]) -> None:
    named = sorted(layer for layer in present if layer not in config_layers.prediction)
    if tuple(named) == config_layers.base:
        return
    only_config = sorted(set(config_layers.base) - set(named))
    only_names = sorted(set(named) - set(config_layers.base))
    raise CheckpointError(
        f"config.json makes layers {ranges(config_layers.base)} MoE, the tensors hold experts of layers "
        f"{ranges(named)}; only in config.json: {ranges(only_config)}, only among the tensors: "
        f"{ranges(only_names)}",
        reason="layers_disagree",
        hint="config.json and weights are of different models, or the download is incomplete",
    )


def _check_experts(layer: int, present: set[int] | range, num_experts: int) -> None:
    top = present.stop if isinstance(present, range) else max(present) + 1
    if num_experts == top == len(present):
        return
    # never as many numbers as config.json or a shape claims, only as many as there are names
    missing = [] if isinstance(present, range) else sorted(set(range(min(top, num_experts))) - present)
    words = [ranges(missing)] if missing else []
    if num_experts > top:
        words.append(f"{top} to {num_experts - 1}" if num_experts > top + 1 else str(top))
    if isinstance(present, range):
        beyond = f"{num_experts} to {top - 1}" if top > num_experts else "none"
    else:
        beyond = ranges(sorted(expert for expert in present if expert >= num_experts))
    given = f"gives experts 0 to {num_experts - 1}" if num_experts else "gives no experts"
    raise CheckpointError(
        f"layer {layer}: config.json {given}; missing: {', '.join(words) or 'none'}, beyond: {beyond}",
        reason="experts",
        hint="config.json and weights are of different models, or the download is incomplete",
    )


def locate_layer(
    index: TensorIndex,
    family: Family,
    survey: Survey,
    layer: int,
    num_experts: Callable[[int], int],
    declared: Declared,
    sizes: tuple[int, int],
) -> Layer:
    """Find and check every tensor of a layer's experts; `sizes`: H and I. Raises CheckpointError."""
    experts = num_experts(layer)
    _check_experts(layer, survey.experts[layer], experts)
    place = Place(survey.prefix, layer, experts, survey.suffixes[layer])
    form = layer_format(index, survey.naming, place, declared)
    if family.biases:
        info = index.find(survey.naming.weight_name(place, "bias"))
        form = form.with_bias(info.dtype if info is not None and info.dtype in ("F16", "F32") else "BF16")
    return Layer(layer, experts, form, survey.naming.operands(index, place, form.roles(*sizes)))
