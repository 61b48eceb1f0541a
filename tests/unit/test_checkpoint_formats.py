"""Formats: what is read, what is refused by name, dtypes and scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ckpt_tools import ITEMSIZE, Model, Tensor, tiny_model

from layercast.checkpoint import Checkpoint
from layercast.errors import CheckpointError

WEIGHT = "model.layers.2.mlp.experts.1.gate_proj.weight"
SCALE = f"{WEIGHT}_scale_inv"


def refused(model: Model, path: Path, reason: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(model.save(path))
    assert caught.value.reason == reason, caught.value
    assert caught.value.hint
    return caught.value


def group(bits: int, kind: str, strategy: str) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


OTHERS: list[tuple[dict[str, Any] | None, str]] = [
    (None, "bf16"),
    ({"quant_method": "fp8", "weight_block_size": None}, "fp8_tensor"),
    ({"quant_method": "fp8", "expert_dtype": "fp4"}, "fp8 with fp4 experts"),
    (group(8, "float", "channel"), "fp8_channel"),
    (group(4, "int", "group"), "int4"),
    (group(8, "float", "block"), "compressed-tensors float8 per block"),
    ({"quant_method": "mxfp8"}, "mxfp8"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "awq"}, "int4"),
    ({"quant_method": "new"}, "quant_method 'new'"),
    ({}, "quant_method 'None'"),
]


@pytest.mark.parametrize(("quantization", "name"), OTHERS)
def test_other_formats_are_refused_by_name(tmp_path: Path, quantization: dict[str, Any] | None, name: str) -> None:
    error = refused(tiny_model(quantization_config=quantization), tmp_path, "format")
    assert f"format {name} is not supported yet; supported: fp8_block" in error.message


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


def test_case_11_a_bf16_layer_is_refused_by_layer(tmp_path: Path) -> None:
    model = tiny_model()
    for name in [name for name in model.tensors if ".layers.2.mlp.experts." in name]:
        tensor = model.tensors.pop(name)
        if name.endswith(".weight"):
            model.tensors[name] = Tensor("BF16", tensor.shape, tensor.data * 2)
    error = refused(model, tmp_path, "layer_dtype")
    assert error.message.startswith("layer 2 is not in the checkpoint's format")
    assert "is BF16, expected F8_E4M3" in error.message


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


def test_bias_and_other_tensors_of_experts_are_left_out(tmp_path: Path) -> None:
    model = tiny_model()
    model.tensors[WEIGHT.replace("weight", "bias")] = Tensor("BF16", (2,), bytes(4))
    Checkpoint.open(model.save(tmp_path))


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
