"""Writes a checkpoint of random numbers in a family's names and a format's dtypes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from layercast.checkpoint.formats import FORMATS, Format, Role
from layercast.checkpoint.naming import FUSED_SUFFIXES, PER_EXPERT_SUFFIXES
from layercast.checkpoint.safetensors_writer import TensorSpec
from layercast.checkpoint.synth.models import RECIPES, Recipe, Sizes
from layercast.checkpoint.synth.random import codes, normal, plain, scales
from layercast.checkpoint.writing import Progress, shards_for, write_checkpoint
from layercast.errors import ConfigError

_COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8_channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"},
    ),
}
# scales around which weights come out near 0.02 to 0.03, as the codes are drawn evenly
_AROUND = {"fp8_block": 2e-4, "fp8_channel": 2e-4, "mxfp8": 2.0**-12, "mxfp4": 2.0**-7, "int4": 4e-3}
_SCALE_DTYPES = {"fp8_block": "F32", "fp8_channel": "BF16", "mxfp8": "U8", "mxfp4": "U8", "int4": "BF16"}


def formats_of(like: str) -> tuple[str, ...]:
    """The formats in which a family can be made. ConfigError where there is no such family."""
    return _recipe(like).only or tuple(FORMATS)


def write_synthetic_checkpoint(
    path: Path | str,
    *,
    like: str,
    form: str,
    layers: int = 2,
    experts: int = 4,
    hidden: int = 256,
    intermediate: int = 256,
    vocab: int = 256,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write a checkpoint into the directory `path`, which must be new or empty, and return it.

    `like`: a family of `RECIPES`; `form`: one of `formats_of(like)`; `layers`: of the whole model, dense ones
    too. Experts are in `form`, all else is bfloat16. Files have about 2 GB each. The same arguments give the
    same bytes. `progress` is called with bytes written and bytes in all. Raises ConfigError (sizes or names
    that do not work; GeometryError where `form` cannot have such an expert), CheckpointError (reason
    "not_empty").
    """
    recipe = _recipe(like)
    if form not in formats_of(like):
        raise ConfigError(f"{like} is not made in {form!r}", hint=f"formats of {like}: {', '.join(formats_of(like))}")
    for name, value in _sizes_given(layers, experts, hidden, intermediate, vocab):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")
    sizes = Sizes(layers, experts, hidden, intermediate, vocab, seed)
    FORMATS[form].layout(hidden, intermediate, 1)
    config = recipe.as_config(sizes)
    if (quantization := _quantization(recipe, form)) is not None:
        config["quantization_config"] = quantization
    tensors = list(_tensors(recipe, _written(form), sizes))
    if form == "fp16":
        config["torch_dtype"] = "float16"
    return write_checkpoint(path, tensors, config, shards_for(tensors), progress)


def _recipe(like: str) -> Recipe:
    if like not in RECIPES:
        raise ConfigError(f"no family {like!r}", hint=f"there are {', '.join(RECIPES)}")
    return RECIPES[like]


def _sizes_given(layers: int, experts: int, hidden: int, intermediate: int, vocab: int) -> Iterator[tuple[str, int]]:
    yield from (("layers", layers), ("experts", experts), ("hidden", hidden))
    yield from (("intermediate", intermediate), ("vocab", vocab))


def _written(form: str) -> Format:
    found = FORMATS[form]
    return found.with_scales("BF16") if form == "int4" else found


def _tensors(recipe: Recipe, form: Format, sizes: Sizes) -> Iterator[TensorSpec]:
    yield from recipe.head(sizes)
    for layer in range(sizes.layers):
        yield from recipe.layer(sizes, layer)
        if recipe.is_moe(layer, sizes.layers):
            at = f"model.layers.{layer}.{recipe.moe_path}.experts"
            make = _fused if form.name in recipe.fused else _per_expert
            yield from make(recipe, form, sizes, at)
    yield from recipe.tail(sizes)


def _per_expert(recipe: Recipe, form: Format, sizes: Sizes, at: str) -> Iterator[TensorSpec]:
    words = dict(zip(("gate", "up", "down"), recipe.words, strict=True))
    roles = form.roles(sizes.hidden, sizes.intermediate)
    for expert in range(sizes.experts):
        for role in roles:
            name = f"{at}.{expert}.{words[role.projection]}.{PER_EXPERT_SUFFIXES[role.keyword]}"
            yield _matrix(form, role, name, (role.rows,), sizes.seed)
            if form.name == "int4" and role.part == "weight":
                yield _shape_of(role, f"{at}.{expert}.{words[role.projection]}.weight_shape", form)


def _shape_of(role: Role, name: str, form: Format) -> TensorSpec:
    shape = np.array([role.rows, role.columns * form.weights.per_item], dtype=np.int64)
    return TensorSpec(name, "I64", (2,), lambda: shape)


def _fused(recipe: Recipe, form: Format, sizes: Sizes, at: str) -> Iterator[TensorSpec]:
    """gate_up and down of all experts; unquantised on their side, packed in groups of 16 bytes."""
    for role in form.roles(sizes.hidden, sizes.intermediate):
        if role.projection == "up":
            continue
        word = "down" if role.projection == "down" else "gate_up"
        rows = role.rows * (1 if word == "down" else 2)
        name = f"{at}.{word}_proj{FUSED_SUFFIXES[role.keyword]}"
        if role.part == "weight" and role.keyword == "weight":
            yield plain(name, role.dtypes[0], (sizes.experts, role.columns, rows), sizes.seed)
        elif role.part == "weight":
            shape = (sizes.experts, rows, role.columns // 16, 16)
            yield codes(name, role.dtypes[0], shape, sizes.seed, e4m3=False)
        else:
            yield _matrix(form, role, name, (sizes.experts, rows), sizes.seed)
    if recipe.biases:
        for word, size in (("gate_up", 2 * sizes.intermediate), ("down", sizes.hidden)):
            yield normal(f"{at}.{word}_proj_bias", (sizes.experts, size), sizes.seed)


def _matrix(form: Format, role: Role, name: str, rows: tuple[int, ...], seed: int) -> TensorSpec:
    if role.part == "scale":
        dtype = _SCALE_DTYPES[form.name]
        return scales(name, dtype, (*rows, role.columns), seed, around=_AROUND[form.name])
    dtype = role.dtypes[0]
    if dtype in ("BF16", "F16"):
        return plain(name, dtype, (*rows, role.columns), seed)
    columns = role.columns // (4 if dtype == "I32" else 1)
    return codes(name, dtype, (*rows, columns), seed, e4m3=dtype == "F8_E4M3")


def _quantization(recipe: Recipe, form: str) -> dict[str, Any] | None:
    """quantization_config: experts alone are quantised, as some published checkpoints have it."""
    if form in ("bf16", "fp16"):
        return None
    moe = recipe.moe_path
    kept = ["self_attn", "linear_attn", "lm_head", "embed_tokens", "shared_expert", f"{moe}.gate", f"{moe}.router"]
    if recipe.dense or recipe.every > 1:
        kept += [f"{moe}.{word}_proj" for word in ("gate", "up", "down")]
    if form == "fp8_block" or form == "mxfp8":
        block = FORMATS[form].weights.block
        found: dict[str, Any] = {"quant_method": "fp8" if form == "fp8_block" else "mxfp8", "fmt": "e4m3"}
        if form == "mxfp8":
            found["scale_fmt"] = "ue8m0"
        more = {"activation_scheme": "dynamic", "weight_block_size": list(block)}
        return found | more | {"modules_to_not_convert": kept}
    if form in recipe.fused:
        return {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    layout, weights = _COMPRESSED[form]
    group = {"targets": ["Linear"], "weights": {**weights, "symmetric": True, "dynamic": False}, "format": layout}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [f"re:.*{name.replace('.', '[.]')}.*" for name in kept],
    }
