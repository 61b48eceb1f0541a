"""Which format a checkpoint is in: what config.json declares, held layer by layer against the tensors.

Reasons of CheckpointError raised here: format, format_disagrees, layer_dtype, config_key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from layercast.checkpoint import formats
from layercast.checkpoint.checks import check_dtype
from layercast.checkpoint.config import ModelConfig
from layercast.checkpoint.formats import FORMATS, Format, with_block
from layercast.checkpoint.index import TensorIndex
from layercast.checkpoint.naming import Naming, Place
from layercast.errors import CheckpointError
from layercast.geometry import BLOCK

_BY_METHOD = {"mxfp4": formats.MXFP4, "fbgemm_fp8": formats.FP8_CHANNEL}
_PLAIN = {"BF16": formats.BF16, "F16": formats.FP16}
_BLOCK_CAP = 1 << 20  # no weight is as wide; larger numbers would not fit machine integers
_SCALE_WORDS = ("scale_inv", "scale")


@dataclass(frozen=True)
class Declared:
    """What config.json says of experts: the format, None where nothing is quantised, and its own words."""

    form: Format | None
    words: str


def declared_format(config: ModelConfig) -> Declared:
    """The format that config.json declares; CheckpointError (reason "format") where it is not supported."""
    quantization = config.quantization
    if quantization is None:
        return Declared(None, "no quantization_config")
    method = str(quantization.get("quant_method"))
    maker = {"fp8": _fp8, "mxfp8": _fp8, "compressed-tensors": _compressed_tensors}.get(method)
    if maker is not None:
        found = maker(config, quantization)
    elif method in _BY_METHOD:
        found = _BY_METHOD[method]
    else:
        found = f"quant_method {method!r}"
    if isinstance(found, str):
        raise CheckpointError(
            f"{config.path}: format {found} is not supported; supported: {', '.join(FORMATS)}",
            reason="format",
            hint="use a checkpoint of the model in one of the supported formats",
        )
    return Declared(found, f"quant_method {method}, which is {found.name}")


def _fp8(config: ModelConfig, quantization: Mapping[str, Any]) -> Format | str:
    """transformers' FineGrainedFP8Config, for fp8 and mxfp8."""
    if quantization.get("expert_dtype", "fp8") != "fp8":
        if quantization["expert_dtype"] != "fp4":
            return f"fp8 with {quantization['expert_dtype']} experts"
        return replace(formats.MXFP4, keywords=("weight", "scale_inv"))
    mx = quantization.get("quant_method") == "mxfp8"
    block = quantization.get("weight_block_size", [1, 32] if mx else list(BLOCK))
    if block is None:
        return "fp8_tensor"
    rows, columns = _block(config, "weight_block_size", block)
    if mx or ((rows, columns) == (1, 32) and quantization.get("scale_fmt") == "ue8m0"):
        return formats.MXFP8 if (rows, columns) == (1, 32) else f"mxfp8 with blocks of {rows} x {columns}"
    return with_block(formats.FP8_BLOCK, (rows, columns))


def _block(config: ModelConfig, key: str, block: Any) -> tuple[int, int]:
    if (
        type(block) is not list
        or len(block) != 2
        or any(type(size) is not int or not 1 <= size <= _BLOCK_CAP for size in block)
    ):
        raise config.error(f"quantization_config.{key}", f"is {block!r}, expected two sizes")
    return block[0], block[1]


def _compressed_tensors(config: ModelConfig, quantization: Mapping[str, Any]) -> Format | str:
    """https://github.com/vllm-project/compressed-tensors: one scheme per group of layers."""
    scheme = _experts_scheme(quantization.get("config_groups"))
    weights = scheme.get("weights")
    if not isinstance(weights, Mapping):
        return "compressed-tensors without a scheme for experts' weights"
    bits, kind, strategy, group = (weights.get(key) for key in ("num_bits", "type", "strategy", "group_size"))
    if not weights.get("symmetric", True):
        return f"compressed-tensors {kind}{bits} with zero points"
    if weights.get("actorder"):
        return f"compressed-tensors {kind}{bits} with reordered columns (actorder)"
    layout = str(scheme.get("format") or quantization.get("format"))
    if (bits, kind, strategy) == (4, "int", "group") and "pack" in layout:
        if type(group) is not int or not 8 <= group <= _BLOCK_CAP or group % 8:
            raise config.error("quantization_config group_size", f"is {group!r}, expected a multiple of 8")
        return formats.int4(group)
    if (bits, kind, strategy) == (8, "float", "channel"):
        return formats.FP8_CHANNEL
    if (bits, kind, strategy) == (8, "float", "block"):
        size = _block(config, "block_structure", weights.get("block_structure"))
        return replace(with_block(formats.FP8_BLOCK, size), keywords=("weight", "scale"))
    if (kind, strategy, group) == ("float", "group", 32) and layout.startswith("mx"):
        return replace(formats.MXFP8, keywords=("weight", "scale")) if bits == 8 else formats.MXFP4
    return f"compressed-tensors {kind}{bits} per {strategy} ({layout})"


def _experts_scheme(groups: Any) -> Mapping[str, Any]:
    """Of several groups the one whose targets mention experts, then the one for all linear modules."""
    schemes = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []

    def mentions(scheme: Mapping[str, Any], word: str) -> bool:
        return any(word in str(target) for target in scheme.get("targets") or ())

    for word in ("experts", "Linear"):
        for scheme in schemes:
            if mentions(scheme, word):
                return scheme
    return schemes[0] if len(schemes) == 1 else {}


def layer_format(index: TensorIndex, naming: Naming, place: Place, declared: Declared) -> Format:
    """The format of a layer: the declared one, or plain where the first weight is BF16 or F16.

    Raises CheckpointError (reasons "layer_dtype", "format_disagrees") where the tensors are something else.
    """
    form, (keyword, name, dtype) = declared.form, _first_weight(index, naming, place, declared.form)
    if form is not None and keyword == form.keywords[0] and dtype in form.stored:
        return _with_scales(index, naming, place, form)
    plain = _PLAIN.get(dtype) if keyword == "weight" else None
    scales = [word for word in _SCALE_WORDS if word in place.suffixes]
    if plain is not None and not scales:
        return plain
    if plain is not None:
        fault = f"{name} is {dtype} and has scales: {naming.weight_name(place, scales[0])}"
    elif form is None or keyword != form.keywords[0]:
        fault = f"{name} is {dtype}"
    else:
        check_dtype(place.layer, name, dtype, "weight", form.stored)
        raise AssertionError
    raise CheckpointError(
        f"layer {place.layer}: config.json declares {declared.words}, but {fault}",
        reason="format_disagrees",
        hint="config.json and weights are of different models, or converted by halves",
    )


def _first_weight(index: TensorIndex, naming: Naming, place: Place, form: Format | None) -> tuple[str, str, str]:
    first = form.keywords[0] if form is not None else "weight"
    for keyword in (first, "weight", "packed"):
        name = naming.weight_name(place, keyword)
        if (info := index.find(name)) is not None:
            return keyword, name, info.dtype
    name = naming.weight_name(place, first)
    raise CheckpointError(
        f"missing expert tensors (1): {name}", reason="missing_tensor", hint="the checkpoint is incomplete"
    )


def _with_scales(index: TensorIndex, naming: Naming, place: Place, form: Format) -> Format:
    """Scales that are handed out as they are keep the dtype that this layer's have."""
    if form.convert or len(form.scales) < 2 or form.weights.scale_dtype == "float8_e8m0fnu":
        return form
    info = index.find(naming.weight_name(place, form.keywords[1]))
    return form.with_scales(info.dtype) if info is not None and info.dtype in form.scales else form


def is_left_out(config: ModelConfig, module: str) -> bool:
    """Whether quantization_config lists `module` (or a part of its name) as not quantised."""
    quantization = config.quantization or {}
    listed: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore"):
        value = quantization.get(key)
        listed += [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    return any(_matches(item, module) for item in listed)


def _matches(item: str, module: str) -> bool:
    if not item.startswith("re:"):
        return bool(item) and item in module
    try:
        return re.match(item[3:], module) is not None
    except re.error:
        return False
