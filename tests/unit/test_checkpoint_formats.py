"""Formats: what is read, what is refused by name, dtypes and scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ckpt_tools import ITEMSIZE, Model, Tensor, tiny_model, walk

from layercast.checkpoint import Checkpoint
from layercast.errors import CheckpointError, ConfigError
from layercast.sources import CheckpointSource

WEIGHT = "model.layers.2.mlp.experts.1.gate_proj.weight"
SCALE = f"{WEIGHT}_scale_inv"


def refused(model: Model, path: Path, reason: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(model.save(path))
    assert caught.value.reason == reason, caught.value
    assert caught.value.hint
    return caught.value


def group(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy} | more
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "fp8", "weight_block_size": None}, "fp8_tensor"),
    ({"quant_method": "fp8", "expert_dtype": "fp6"}, "fp8 with fp6 experts"),
    ({"quant_method": "mxfp8", "weight_block_size": [1, 16]}, "mxfp8 with blocks of 1 x 16"),
    (group(8, "float", "tensor"), "compressed-tensors float8 per tensor"),
    (group(4, "int", "group", symmetric=False), "compressed-tensors int4 with zero points"),
    (group(4, "int", "group", actorder="group"), "compressed-tensors int4 with reordered columns"),
    (group(4, "int", "channel"), "compressed-tensors int4 per channel"),
    (group(4, "float", "tensor_group", group_size=16), "compressed-tensors float4 per tensor_group"),
    ({"quant_method": "compressed-tensors"}, "compressed-tensors without a scheme"),
    ({"quant_method": "awq"}, "quant_method 'awq'"),
    ({"quant_method": "gptq"}, "quant_method 'gptq'"),
    ({"quant_method": "new"}, "quant_method 'new'"),
    ({}, "quant_method 'None'"),
]


@pytest.mark.parametrize(("quantization", "name"), OTHERS)
def test_other_formats_are_refused_by_name(tmp_path: Path, quantization: dict[str, Any], name: str) -> None:
    error = refused(tiny_model(quantization_config=quantization), tmp_path, "format")
    assert f"format {name}" in error.message
    assert "is not supported; supported: fp8_block, fp8_channel, bf16, fp16, mxfp8, mxfp4, int4" in error.message


DISAGREE: list[tuple[dict[str, Any] | None, str]] = [
    (None, "config.json declares no quantization_config, but {name} is F8_E4M3"),
    (group(4, "int", "group", group_size=32) | {"format": "pack-quantized"}, "which is int4, but {name} is F8_E4M3"),
    ({"quant_method": "mxfp4"}, "config.json declares quant_method mxfp4, which is mxfp4, but {name} is F8_E4M3"),
]


@pytest.mark.parametrize(("quantization", "words"), DISAGREE)
def test_config_and_tensors_that_disagree_are_both_shown(
    tmp_path: Path, quantization: dict[str, Any] | None, words: str
) -> None:
    error = refused(tiny_model(quantization_config=quantization), tmp_path, "format_disagrees")
    assert error.message.startswith("layer 1: ")
    assert words.format(name="model.layers.1.mlp.experts.0.gate_proj.weight") in error.message


def test_two_schemes_the_experts_count(tmp_path: Path) -> None:
    """As in Kimi-K2: int4 for experts, something else for the rest."""
    scheme = group(8, "float", "block", block_structure=[128, 128])
    scheme["config_groups"]["group_0"]["targets"] = ["re:.*mlp.experts.*"]
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    scheme["config_groups"] = {"group_1": {"targets": ["Linear"], "weights": weights}, **scheme["config_groups"]}
    model = tiny_model(quantization_config=scheme)
    model.tensors = {name.replace("_scale_inv", "_scale"): tensor for name, tensor in model.tensors.items()}
    assert Checkpoint.open(model.save(tmp_path)).format == "fp8_block"


def test_block_size_is_read_and_has_a_default(tmp_path: Path) -> None:
    model = tiny_model(quantization_config={"quant_method": "fp8", "scale_fmt": "ue8m0"})
    assert Checkpoint.open(model.save(tmp_path / "a")).layout(2).block == (128, 128)
    model = tiny_model(block=(64, 32))
    checkpoint = Checkpoint.open(model.save(tmp_path / "b"))
    assert checkpoint.layout(4).kinds[1].shape == (2, 8)
    assert checkpoint.describe()["tp"] == [1, 2, 4]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "U8", "F8_E8M0"])
def test_case_10_other_scale_dtypes_are_refused(tmp_path: Path, dtype: str) -> None:
    model = tiny_model()
    shape = model.tensors[SCALE].shape
    model.tensors[SCALE] = Tensor(dtype, shape, b"\x78" * (shape[0] * shape[1] * ITEMSIZE[dtype]))
    error = refused(model, tmp_path, "scale_dtype")
    assert f"{SCALE} is {dtype}, expected F32" in error.message


def as_bf16(model: Model, layer: int) -> None:
    """The layer's experts in BF16, without scales."""
    for name in [name for name in model.tensors if f".layers.{layer}.mlp.experts." in name]:
        tensor = model.tensors.pop(name)
        if name.endswith(".weight"):
            model.tensors[name] = Tensor("BF16", tensor.shape, tensor.data * 2)


def test_case_11_a_bf16_layer_is_loaded_as_what_it_is(tmp_path: Path) -> None:
    model = tiny_model(experts=1)
    as_bf16(model, 2)
    checkpoint = Checkpoint.open(model.save(tmp_path))
    assert (checkpoint.format, checkpoint.layer_format(1), checkpoint.layer_format(2)) == (
        "fp8_block",
        "fp8_block",
        "bf16",
    )
    assert checkpoint.layout(2) == checkpoint.layout(2, layer=1)
    assert checkpoint.layout(2, layer=2).names == ("w13", "w2")
    cut = checkpoint.blocks(2, 2)
    assert cut.layout.format == "bf16" and [kind.dtype for kind in cut.layout.kinds] == ["bfloat16"] * 2
    for number, name in enumerate(cut.layout.names):
        assert walk(cut.of(0, 1, number)) == checkpoint.reference(2, 0, 1, 2)[name].tobytes()
    down = model.tensors["model.layers.2.mlp.experts.0.down_proj.weight"].data
    assert walk(cut.of(0, 0, 1)) + walk(cut.of(0, 1, 1)) != down  # columns, not halves
    formats = [(span["first"], span["value"]) for span in checkpoint.describe()["formats"]]
    assert formats == [(1, "fp8_block"), (2, "bf16")]


def test_case_11_a_stream_refuses_a_layer_in_another_format(tmp_path: Path) -> None:
    model = tiny_model(experts=1)
    as_bf16(model, 2)
    source = CheckpointSource(Checkpoint.open(model.save(tmp_path)))
    source.writer(1, 2)
    with pytest.raises(ConfigError, match="layer 2 is bf16, the others are fp8_block"):
        source.writer(2, 2)


def test_case_11_half_a_layer_in_bf16_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    shape = model.tensors[WEIGHT].shape
    model.tensors[WEIGHT] = Tensor("BF16", shape, bytes(2 * shape[0] * shape[1]))
    error = refused(model, tmp_path, "layer_dtype")
    assert error.message.startswith("layer 2 is not in the checkpoint's format")
    assert f"{WEIGHT} is BF16, expected F8_E4M3" in error.message


def test_case_11_bf16_with_scales_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    for name, tensor in list(model.tensors.items()):
        if ".layers.2.mlp.experts." in name and name.endswith("weight"):
            model.tensors[name] = Tensor("BF16", tensor.shape, tensor.data * 2)
    assert "is BF16 and has scales" in refused(model, tmp_path, "format_disagrees").message


def test_a_format_that_no_layer_has(tmp_path: Path) -> None:
    model = tiny_model()
    as_bf16(model, 1)
    as_bf16(model, 2)
    assert "no layer's experts are" in refused(model, tmp_path / "a", "format_disagrees").message
    for number, listed in enumerate((["model.layers.1.mlp"], ["re:.*mlp.experts.*"])):
        model.config["quantization_config"]["modules_to_not_convert"] = listed
        assert Checkpoint.open(model.save(tmp_path / f"b{number}")).format == "bf16"


def test_case_11_a_missing_scale_is_named(tmp_path: Path) -> None:
    model = tiny_model()
    scale = model.tensors.pop(SCALE)
    assert f"missing scales (1): {SCALE}" in refused(model, tmp_path / "a", "missing_scale").message
    model.tensors[SCALE.removesuffix("_inv")] = scale
    assert "without _inv" in refused(model, tmp_path / "b", "missing_scale").hint


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    model = tiny_model()
    del model.tensors[WEIGHT]
    assert WEIGHT in refused(model, tmp_path, "missing_tensor").message


def test_tensors_that_are_not_understood_are_left_out_and_shown(tmp_path: Path) -> None:
    model = tiny_model()
    names = [WEIGHT.replace("weight", "bias"), WEIGHT.replace("weight", "input_scale")]
    for name in names:
        model.tensors[name] = Tensor("BF16", (2,), bytes(4))
    seen = Checkpoint.open(model.save(tmp_path)).describe()["not_understood"]
    assert seen == {"count": 2, "names": sorted(names)}


def test_shapes_are_held_against_the_config(tmp_path: Path) -> None:
    error = refused(tiny_model(moe_intermediate_size=128), tmp_path / "a", "tensor_shape")
    assert "has shape [256, 256], config.json makes it [128, 256]" in error.message
    model = tiny_model(quantization_config={"quant_method": "fp8", "weight_block_size": [64, 64]})
    assert "weight_scale_inv has shape [2, 2]" in refused(model, tmp_path / "b", "tensor_shape").message


@pytest.mark.parametrize("tp", [1, 2])
def test_case_14_gate_comes_first(tmp_path: Path, tp: int) -> None:
    model = tiny_model()
    fill = {"gate_proj.weight": b"g", "up_proj.weight": b"u", "gate_proj.weight_scale_inv": b"G"}
    for name, tensor in model.tensors.items():
        byte = next((byte for end, byte in fill.items() if name.endswith(end)), b"U")
        tensor.data = byte * len(tensor.data)
    checkpoint = Checkpoint.open(model.save(tmp_path))
    for rank in range(tp):
        seen = checkpoint.reference(1, 1, rank, tp)
        weights, scales = seen["w13"].tobytes(), seen["w13_scale"].tobytes()
        assert weights == b"g" * (len(weights) // 2) + b"u" * (len(weights) // 2)
        assert scales == b"G" * (len(scales) // 2) + b"U" * (len(scales) // 2)
