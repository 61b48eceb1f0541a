"""Every format, cut over ranks: dequantised slices are those of the whole, or the cut is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from format_tools import KINDS, assert_exact, compressed, e8m0, model, walk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layercast.checkpoint import Checkpoint
from layercast.checkpoint.formats import to_float32
from layercast.errors import CheckpointError, GeometryError


def opened(path: Path, made: object, **how: object) -> Checkpoint:
    return Checkpoint.open(made.save(path), **how)  # type: ignore[attr-defined,arg-type]


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("form", KINDS)
def test_a_tensor_per_expert(tmp_path: Path, form: str, tp: int) -> None:
    made = model(form, hidden=384, inner=512)
    checkpoint = opened(tmp_path, made)
    assert checkpoint.format == form
    assert_exact(checkpoint, made, tp)


FUSED = [(form, turned) for form in KINDS if form not in ("mxfp4", "int4") for turned in (False, True)]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("form", "turned"), [*FUSED, ("mxfp4", False)])
def test_case_12_a_fused_tensor(tmp_path: Path, form: str, turned: bool, tp: int) -> None:
    """Fused or one by one: the same bytes per rank. Packed weights (mxfp4) are never turned."""
    one = model(form, hidden=384, inner=256)
    all_in_one = model(form, hidden=384, inner=256, fused=True, turned=turned)
    checkpoint, fused = opened(tmp_path / "one", one), opened(tmp_path / "fused", all_in_one)
    assert_exact(fused, all_in_one, tp)
    for rank in range(tp):
        for kind, data in checkpoint.reference(1, 1, rank, tp).items():
            assert fused.reference(1, 1, rank, tp)[kind].tobytes() == data.tobytes()


def test_llama_4_in_fbgemms_fp8(tmp_path: Path) -> None:
    """All experts in one tensor on its side; the scales of down lie upright, which is the same bytes."""
    config = {"model_type": "llama4_text", "intermediate_size": 128, "num_local_experts": 2, "n_routed_experts": None}
    kind = replace(KINDS["fp8_channel"], scale="F32", quantization={"quant_method": "fbgemm_fp8"})
    made = model(kind, inner=128, fused=True, turned=True, layers=(0,), path="feed_forward.experts", **config)
    scale = "model.layers.0.feed_forward.experts.down_proj_scale"
    made.tensors[scale] = ("F32", made.tensors[scale][1].reshape(2, 256, 1))
    checkpoint = opened(tmp_path, made)
    assert checkpoint.format == "fp8_channel"
    for tp in (1, 2, 4):
        assert_exact(checkpoint, made, tp)


@pytest.mark.parametrize("form", ["bf16", "mxfp4"])
def test_gate_and_up_that_take_turns(tmp_path: Path, form: str) -> None:
    """gpt-oss: bf16 on its side, mxfp4 upright; biases are kinds of their own."""
    config = {"model_type": "gpt_oss", "intermediate_size": 128, "num_local_experts": 2}
    quantization = {"quant_method": "mxfp4"} if form == "mxfp4" else None
    made = model(
        form, inner=128, fused=True, interleaved=True, turned=form == "bf16", biases=True, layers=(0,),
        quantization_config=quantization, n_routed_experts=None, **config,
    )  # fmt: skip
    checkpoint = opened(tmp_path, made)
    for tp in (1, 2, 4):
        assert_exact(checkpoint, made, tp)
        layout, part = checkpoint.layout(tp), 128 // tp
        assert layout.names[-2:] == ("w13_bias", "w2_bias")
        gate_up = made.tensors["model.layers.0.mlp.experts.gate_up_proj_bias"][1]
        down = made.tensors["model.layers.0.mlp.experts.down_proj_bias"][1]
        for rank in range(tp):
            seen = checkpoint.reference(0, 1, rank, tp)
            mine = slice(rank * part, (rank + 1) * part)
            wanted = np.concatenate([gate_up[1, 0::2][mine], gate_up[1, 1::2][mine]])
            assert seen["w13_bias"].tobytes() == wanted.tobytes()
            assert seen["w2_bias"].tobytes() == down[1].tobytes()


def test_gpt_oss_without_biases_is_refused(tmp_path: Path) -> None:
    made = model("bf16", inner=128, fused=True, interleaved=True, turned=True, layers=(0,), model_type="gpt_oss",
                 intermediate_size=128)  # fmt: skip
    with pytest.raises(CheckpointError, match="gate_up_proj_bias") as caught:
        opened(tmp_path, made)
    assert caught.value.reason == "missing_tensor"


@pytest.mark.parametrize(
    ("form", "inner", "tp", "grid"),
    [
        ("fp8_block", 1536, 8, 64),
        ("fp8_block", 320, 2, 32),
        ("fp8_block", 768, 4, 64),
        ("fp8_block", 10944, 2, 32),
        ("mxfp8", 2880, 4, 16),
        ("mxfp4", 2880, 4, 16),
        ("mxfp4", 2880, 8, 8),
        ("int4", 96, 2, 16),
    ],
)
def test_case_09_off_the_grid(tmp_path: Path, form: str, inner: int, tp: int, grid: int) -> None:
    made = model(form, hidden=128, inner=inner, experts=1)
    refused = opened(tmp_path, made)
    with pytest.raises(GeometryError) as caught:
        refused.blocks(1, tp)
    for words in (f"I = {inner}", f"T = {tp} ranks", f"Ir = I / T = {inner // tp} rows", "block"):
        assert words in caught.value.message
    assert "T of 1 to 8 that work" in caught.value.hint and "off_grid='finer'" in caught.value.hint
    finer = Checkpoint.open(tmp_path, off_grid="finer")
    assert_exact(finer, made, tp)
    by_name = {kind.name: kind.block for kind in finer.layout(tp).kinds}
    assert by_name["w2_scale"][1] == grid
    assert by_name["w13_scale"] == ((grid if form == "fp8_block" else 1), KINDS[form].block[1])
    assert finer.layout(1) == refused.layout(1)


@pytest.mark.parametrize("inner", [320, 10944])
def test_case_09_whole_experts_end_inside_a_block(tmp_path: Path, inner: int) -> None:
    """T = 1: the last row and column of scales stand for less than a block."""
    made = model("fp8_block", hidden=128, inner=inner, experts=1)
    checkpoint = opened(tmp_path, made)
    assert_exact(checkpoint, made, 1)
    assert checkpoint.layout(1).kinds[1].shape[0] == 2 * -(-inner // 128)


def test_case_09_neighbours_share_a_row_of_scales(tmp_path: Path) -> None:
    """320 rows over two ranks: both need the scale of rows 128 to 255, and rank 1 starts inside that block."""
    made = model("fp8_block", hidden=128, inner=320, experts=1)
    checkpoint = opened(tmp_path, made, off_grid="finer")
    whole = made.tensors["model.layers.1.mlp.experts.0.gate_proj.weight_scale_inv"][1][:, 0]
    for rank, rows in ((0, [0, 0, 0, 0, 1]), (1, [1, 1, 1, 2, 2])):
        seen = checkpoint.reference(1, 0, rank, 2)["w13_scale"].view(np.float32)
        assert seen[: len(rows)].tolist() == whole[rows].tolist()


@pytest.mark.parametrize("form", ["mxfp4", "int4"])
def test_a_byte_is_never_split(tmp_path: Path, form: str) -> None:
    checkpoint = opened(tmp_path, model(form, hidden=64, inner=96), off_grid="finer")
    with pytest.raises(GeometryError, match="end inside a byte of 2 weights"):
        Checkpoint.open(model(form, hidden=64, inner=32).save(tmp_path / "b"), off_grid="finer").blocks(1, 32)
    with pytest.raises(GeometryError, match="not a whole number of rows"):
        checkpoint.blocks(1, 5)


@pytest.mark.parametrize("form", ["mxfp8", "mxfp4", "int4"])
def test_groups_are_whole(tmp_path: Path, form: str) -> None:
    kind = replace(KINDS[form], block=(1, 16))
    made = model(kind, hidden=64, inner=48)
    with pytest.raises((CheckpointError, GeometryError)):
        opened(tmp_path, made).layout(1)


SCALES = ["F32", "BF16", "F16", "U8", "F8_E8M0"]


@pytest.mark.parametrize("fused", [False, True], ids=["single", "fused"])
@pytest.mark.parametrize("dtype", SCALES)
def test_case_10_scales_of_any_dtype_become_the_same_float32(tmp_path: Path, dtype: str, fused: bool) -> None:
    powers = replace(KINDS["fp8_block"], scale=dtype)
    made = model(powers, fused=fused, seed=1)
    if dtype in ("F32", "BF16", "F16"):  # the same powers of two as the bytes have
        for name, (kept, data) in list(made.tensors.items()):
            if kept == dtype:
                codes = np.random.default_rng(len(name)).integers(120, 135, data.shape, dtype=np.uint8)
                made.tensors[name] = (dtype, _as(e8m0(codes), dtype))
    else:
        for name, (kept, data) in list(made.tensors.items()):
            if kept == dtype:
                codes = np.random.default_rng(len(name)).integers(120, 135, data.shape, dtype=np.uint8)
                made.tensors[name] = (dtype, codes)
    checkpoint = opened(tmp_path, made)
    name = "model.layers.1.mlp.experts." + ("down_proj_scale_inv" if fused else "1.down_proj.weight_scale_inv")
    shape = made.tensors[name][1].shape
    codes = np.random.default_rng(len(name)).integers(120, 135, shape, dtype=np.uint8)
    wanted = e8m0(codes[1] if fused else codes)
    assert checkpoint.reference(1, 1, 0, 1)["w2_scale"].view(np.float32).tolist() == wanted.reshape(-1).tolist()
    cut = checkpoint.blocks(1, 2)
    del checkpoint
    # converted scales belong to the cut
    column = walk(cut.of(1, 1, 3)).view(np.float32)
    assert column.tolist() == wanted[:, 1].tolist()


def _as(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "F16":
        return values.astype(np.float16)
    return values if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)


def test_case_10_byte_120_is_a_128th() -> None:
    assert to_float32(np.array([120], np.uint8), "U8")[0] == 2.0**-7


def test_every_scale_is_converted_exactly() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    half, brain = to_float32(words.view(np.uint8), "F16"), to_float32(words.view(np.uint8), "BF16")
    assert half.tobytes() == words.view(np.float16).astype(np.float32).tobytes()
    assert (brain.view(np.uint32) >> 16).astype(np.uint16).tobytes() == words.tobytes()
    codes = to_float32(np.arange(256, dtype=np.uint8), "F8_E8M0")
    assert codes[:255].astype(np.float64).tolist() == [2.0 ** (code - 127) for code in range(255)]
    assert np.isnan(codes[255])


def test_a_scale_unlike_the_others_is_refused(tmp_path: Path) -> None:
    made = model("fp8_block")
    name = "model.layers.1.mlp.experts.1.up_proj.weight_scale_inv"
    made.tensors[name] = ("BF16", np.zeros(made.tensors[name][1].shape, np.uint16))
    with pytest.raises(CheckpointError, match="up_proj.weight_scale_inv is BF16, expected F32") as caught:
        opened(tmp_path, made)
    assert caught.value.reason == "scale_dtype"


@pytest.mark.parametrize(
    ("form", "dtype", "reason"),
    [("fp8_block", "F64", "scale_dtype"), ("mxfp8", "F32", "scale_dtype"), ("int4", "F32", "scale_dtype"),
     ("fp8_channel", "U8", "scale_dtype")],
)  # fmt: skip
def test_an_unexpected_dtype_is_refused(tmp_path: Path, form: str, dtype: str, reason: str) -> None:
    from format_tools import TORCH

    TORCH["F64"] = "float64"
    made = model(form)
    size = {"F64": np.float64, "F32": np.float32, "U8": np.uint8}[dtype]
    for name, (_, data) in list(made.tensors.items()):
        if "scale" in name:
            made.tensors[name] = (dtype, np.zeros(data.shape, size))
    with pytest.raises(CheckpointError, match=f"gate_proj.weight_scale.* is {dtype}, expected") as caught:
        opened(tmp_path, made)
    assert caught.value.reason == reason


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_int4_scales_stay_as_they_are(tmp_path: Path, dtype: str) -> None:
    made = model(replace(KINDS["int4"], scale=dtype))
    checkpoint = opened(tmp_path, made)
    assert checkpoint.layout(1).kinds[1].dtype == {"BF16": "bfloat16", "F16": "float16"}[dtype]
    assert_exact(checkpoint, made, 2)


def test_int4_groups_of_another_size(tmp_path: Path) -> None:
    scheme = compressed(4, "int", "group", "pack-quantized", group_size=128)
    made = model(replace(KINDS["int4"], block=(1, 128), quantization=scheme), inner=512)
    checkpoint = opened(tmp_path, made)
    assert checkpoint.layout(2).kinds[1].shape == (512, 2)
    assert_exact(checkpoint, made, 4)


def test_bytes_pass_unchanged(tmp_path: Path) -> None:
    """Also 0x7f, 0x80 and 0xff, which are NaN and minus zero."""
    made = model("fp8_block", experts=1)
    every = np.tile(np.arange(256, dtype=np.uint8), 256).reshape(256, 256)
    for name, (dtype, _) in list(made.tensors.items()):
        if dtype == "F8_E4M3":
            made.tensors[name] = (dtype, every)
    assert opened(tmp_path, made).reference(1, 0, 0, 1)["w13"].tobytes() == every.tobytes() * 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    form=st.sampled_from(sorted(KINDS)),
    hidden=st.integers(1, 5),
    inner=st.integers(1, 160),
    tp=st.integers(1, 8),
    rows=st.sampled_from([4, 16, 128]),
    columns=st.sampled_from([8, 24, 128]),
    seed=st.integers(0, 99),
)
def test_any_valid_geometry_is_exact_and_others_are_refused(
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    hidden: int,
    inner: int,
    tp: int,
    rows: int,
    columns: int,
    seed: int,
) -> None:
    """Whatever H, I, T, block and group: exact on a finer grid where I / T is whole and splits no byte."""
    kind = KINDS[form]
    if form == "fp8_block":
        quantization = {"quant_method": "fp8", "weight_block_size": [rows, columns]}
        kind = replace(kind, block=(rows, columns), quantization=quantization)
    if kind.block[1] == 32:
        hidden, inner = hidden * 32, -(-inner // 32) * 32
    path = tmp_path_factory.mktemp("geometry")
    made = model(kind, hidden=hidden, inner=inner, experts=1, seed=seed)
    checkpoint = opened(path, made, off_grid="finer")
    strict = Checkpoint.open(path)
    if inner % tp or inner // tp % kind.per_byte:
        with pytest.raises(GeometryError, match=f"I = {inner} cannot be cut for T = {tp}"):
            checkpoint.blocks(1, tp)
        return
    assert_exact(checkpoint, made, tp)
    part = inner // tp
    if tp == 1 or (part % kind.block[0] == 0 and part % (kind.block[1] or 1) == 0):
        assert strict.layout(tp) == checkpoint.layout(tp)
    else:
        with pytest.raises(GeometryError, match=f"I = {inner} cannot be cut for T = {tp}"):
            strict.layout(tp)


@pytest.mark.parametrize("form", KINDS)
def test_unaligned_data_is_right(tmp_path: Path, form: str) -> None:
    """Every tensor at an odd address: also scales that are converted, or repeated on a finer grid."""
    made = model(form, hidden=64, inner=96 if form in ("fp8_block", "bf16") else 128)
    path = made.save(tmp_path)
    header: dict[str, object] = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    parts, position = [b"x"], 1
    for name, (dtype, data) in made.tensors.items():
        end = position + data.nbytes
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [position, end]}
        parts.append(np.ascontiguousarray(data).tobytes())
        position = end
    text = json.dumps(header).encode()
    text += b" " * (len(text) % 2)  # even: what follows the one byte is odd
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    checkpoint = Checkpoint.open(path, off_grid="finer")
    assert all(int(a) % 2 for operand in checkpoint.layer(1).operands for a in operand.addresses)
    for tp in (1, 2, 4):
        assert_exact(checkpoint, made, tp)
