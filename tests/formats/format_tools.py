"""Experts of random codes in every format, with the numbers they stand for; nothing of the package takes part.

`make` gives an expert's tensors and its exact values; `values_on_rank` turns a rank's kinds into numbers, with
the blocks that the layout states.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import TensorSpec, serialize_file

Floats = np.ndarray
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def e4m3(codes: np.ndarray) -> Floats:
    """1 sign, 4 exponent (bias 7) and 3 mantissa bits; 0x7f and 0xff are NaN (OCP 8-bit floating point)."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    value = np.where(codes & 0x7F == 0x7F, np.nan, value)
    return np.where(codes & 0x80, -value, value).astype(np.float32)


def e8m0(codes: np.ndarray) -> Floats:
    """2^(code - 127); 255 is NaN (OCP Microscaling)."""
    value = np.ldexp(np.float64(1), codes.astype(np.int32) - 127)
    return np.where(codes == 255, np.nan, value).astype(np.float32)


def e2m1(packed: np.ndarray) -> Floats:
    """Two to a byte along the last axis, the first in the low half; the highest bit is the sign."""
    both = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return np.where(both & 8, -E2M1[both & 7], E2M1[both & 7]).astype(np.float32)


def int4(packed: np.ndarray) -> Floats:
    """Two to a byte, the first in the low half, each 8 above its value."""
    both = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)
    return both.astype(np.float32) - 8


def bf16(words: np.ndarray) -> Floats:
    return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def spread(scales: Floats, block: tuple[int, int], shape: tuple[int, int]) -> Floats:
    """A scale for each element of a matrix of `shape`."""
    rows, columns = np.arange(shape[0]) // block[0], np.arange(shape[1]) // block[1]
    return scales[np.ix_(rows, columns)]


@dataclass(frozen=True)
class Kind:
    """How a format is stored: weights' dtype and values per byte, scales' dtype and block (0: whole rows)."""

    weight: str
    per_byte: int
    scale: str | None
    block: tuple[int, int]
    quantization: dict[str, Any] | None
    suffixes: tuple[str, str]  # of per-expert tensors
    fused: tuple[str, str]


def compressed(bits: int, kind: str, strategy: str, layout: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


SCALE_INV, SCALE = ("weight", "weight_scale_inv"), ("weight", "weight_scale")
PACKED = ("weight_packed", "weight_scale")
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
CHANNEL = compressed(8, "float", "channel", "float-quantized")
KINDS: dict[str, Kind] = {
    "fp8_block": Kind("F8_E4M3", 1, "F32", (128, 128), FP8, SCALE_INV, ("", "_scale_inv")),
    "fp8_channel": Kind("F8_E4M3", 1, "BF16", (1, 0), CHANNEL, SCALE, ("", "_scale")),
    "bf16": Kind("BF16", 1, None, (1, 1), None, SCALE, ("", "")),
    "fp16": Kind("F16", 1, None, (1, 1), None, SCALE, ("", "")),
    "mxfp8": Kind("F8_E4M3", 1, "U8", (1, 32), {"quant_method": "mxfp8"}, SCALE_INV, ("", "_scale_inv")),
    "mxfp4": Kind(
        "U8", 2, "U8", (1, 32), compressed(4, "float", "group", "mxfp4-pack-quantized", group_size=32), PACKED,
        ("_blocks", "_scales"),
    ),
    "int4": Kind(
        "I32", 2, "BF16", (1, 32), compressed(4, "int", "group", "pack-quantized", group_size=32), PACKED,
        ("_packed", "_scale"),
    ),
}  # fmt: skip


@dataclass
class Matrix:
    """One projection: weight bytes [rows, columns / per_byte], scale bytes, and what they stand for."""

    weight: np.ndarray
    scale: np.ndarray | None
    values: Floats


def scale_bytes(values: Floats, dtype: str) -> np.ndarray:
    """float32 powers of two (or any values, as F32) in another dtype."""
    if dtype == "F32":
        return np.ascontiguousarray(values)
    if dtype == "F16":
        return values.astype(np.float16)
    if dtype == "BF16":
        return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)
    return (np.log2(values) + 127).astype(np.uint8)


def make(kind: Kind, rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Random codes, all of them there; scales are distinct powers of two or distinct bfloat16 values."""
    if kind.weight in ("BF16", "F16"):
        words = rng.integers(0, 1 << 16, (rows, columns), dtype=np.uint16)
        return Matrix(words, None, bf16(words) if kind.weight == "BF16" else words.view(np.float16).astype(np.float32))
    codes = rng.integers(0, 256, (rows, columns // kind.per_byte), dtype=np.uint8)
    grid = (-(-rows // kind.block[0]), -(-columns // (kind.block[1] or columns)))
    if kind.scale in ("U8", "F8_E8M0"):
        scales = e8m0(rng.integers(100, 150, grid, dtype=np.uint8))
    else:
        scales = bf16(rng.integers(0x3A00, 0x3C00, grid, dtype=np.uint16))
    plain = {"F8_E4M3": e4m3, "U8": e2m1, "I32": int4}[kind.weight](codes)
    block = (kind.block[0], kind.block[1] or columns)
    return Matrix(codes, scale_bytes(scales, kind.scale or "F32"), plain * spread(scales, block, (rows, columns)))


@dataclass
class Model:
    """config.json, tensors (name -> dtype, array), and per (layer, expert) the values of gate, up and down."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)
    values: dict[tuple[int, int], tuple[Floats, Floats, Floats]] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        save(path / "model.safetensors", self.tensors)
        return path


TORCH = {
    "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "I8": "int8", "I32": "int32",
    "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip


def save(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Written by the safetensors library."""
    keep = {name: np.ascontiguousarray(data) for name, (_, data) in tensors.items()}
    specs = {
        name: TensorSpec(dtype=TORCH[dtype], shape=list(keep[name].shape), data_ptr=keep[name].ctypes.data,
                         data_len=keep[name].nbytes)
        for name, (dtype, _) in tensors.items()
    }  # fmt: skip
    serialize_file(specs, path, None)


def model(
    form: str | Kind,
    *,
    layers: tuple[int, ...] = (1,),
    experts: int = 2,
    hidden: int = 256,
    inner: int = 256,
    fused: bool = False,
    interleaved: bool = False,
    turned: bool = False,
    biases: bool = False,
    path: str = "mlp.experts",
    words: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    prefix: str = "model.",
    seed: int = 0,
    **config: Any,
) -> Model:
    """A DeepSeek-V3 checkpoint by default; more keys of config.json as keywords."""
    kind = KINDS[form] if isinstance(form, str) else form
    total = max(layers) + 1
    out = Model(
        {
            "model_type": "deepseek_v3",
            "num_hidden_layers": total,
            "hidden_size": hidden,
            "moe_intermediate_size": inner,
            "n_routed_experts": experts,
            "first_k_dense_replace": min(layers),
            "quantization_config": kind.quantization,
        }
        | config
    )
    rng = np.random.default_rng(seed)
    for layer in layers:
        base = f"{prefix}layers.{layer}.{path}"
        found = []
        for expert in range(experts):
            shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
            each = [make(kind, rng, *shape) for shape in shapes]
            out.values[layer, expert] = (each[0].values, each[1].values, each[2].values)
            found.append(each)
        if fused:
            _fuse(out, kind, base, found, interleaved, turned)
        else:
            _spread(out, kind, base, found, words)
        if biases:
            _bias(out, base, rng, experts, hidden, inner)
    return out


def _spread(out: Model, kind: Kind, base: str, found: list[list[Matrix]], words: tuple[str, str, str]) -> None:
    for expert, each in enumerate(found):
        for word, matrix in zip(words, each, strict=True):
            weight = matrix.weight.view(np.int32) if kind.weight == "I32" else matrix.weight
            out.tensors[f"{base}.{expert}.{word}.{kind.suffixes[0]}"] = (kind.weight, weight)
            if matrix.scale is not None and kind.scale is not None:
                out.tensors[f"{base}.{expert}.{word}.{kind.suffixes[1]}"] = (kind.scale, matrix.scale)


def _fuse(out: Model, kind: Kind, base: str, found: list[list[Matrix]], interleaved: bool, turned: bool) -> None:
    def both(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if interleaved:
            return np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])
        return np.concatenate([gate, up])

    for word in ("gate_up_proj", "down_proj"):
        for part, suffix, dtype in (("weight", kind.fused[0], kind.weight), ("scale", kind.fused[1], kind.scale)):
            if dtype is None:
                continue
            every = []
            for gate, up, down in found:
                if word == "down_proj":
                    every.append(getattr(down, part))
                else:
                    every.append(both(getattr(gate, part), getattr(up, part)))
            data = np.stack(every)
            if turned:
                data = data.swapaxes(1, 2)
            elif part == "weight" and suffix == "_blocks":
                data = data.reshape(*data.shape[:2], -1, 16)
            out.tensors[f"{base}.{word}{suffix}"] = (dtype, data)


def _bias(out: Model, base: str, rng: np.random.Generator, experts: int, hidden: int, inner: int) -> None:
    for word, size in (("gate_up_proj", 2 * inner), ("down_proj", hidden)):
        data = rng.integers(0, 1 << 16, (experts, size), dtype=np.uint16)
        out.tensors[f"{base}.{word}_bias"] = ("BF16", data)


def walk(blocks: np.ndarray) -> np.ndarray:
    """The bytes of blocks, one after the other, row after row."""
    found = []
    for source, stride, width, rows, step, count in blocks.tolist():
        size = (count - 1) * step + (rows - 1) * stride + width
        memory = np.frombuffer((ctypes.c_uint8 * size).from_address(source), dtype=np.uint8)
        found.append(np.lib.stride_tricks.as_strided(memory, (count, rows, width), (step, stride, 1)).reshape(-1))
    return np.concatenate(found) if found else np.zeros(0, np.uint8)


DECODE = {
    "fp8_block": e4m3, "fp8_channel": e4m3, "mxfp8": e4m3, "mxfp4": e2m1, "int4": int4,
    "bf16": lambda data: bf16(data.copy().view(np.uint16)),
    "fp16": lambda data: data.copy().view(np.float16).astype(np.float32),
}  # fmt: skip


def values_on_rank(kinds: dict[str, np.ndarray], layout: Any) -> tuple[Floats, Floats]:
    """w13 [2*Ir, H] and w2 [H, Ir] as numbers, from a rank's bytes and what its layout says of them."""
    by_name = {kind.name: kind for kind in layout.kinds}
    ir, found = layout.intermediate_per_rank, []
    for name, shape in (("w13", (2 * ir, layout.hidden)), ("w2", (layout.hidden, ir))):
        plain = DECODE[layout.format](kinds[name].reshape(by_name[name].shape[0], -1))
        assert plain.shape == shape
        if f"{name}_scale" not in by_name:
            found.append(plain)
            continue
        kind, data = by_name[f"{name}_scale"], kinds[f"{name}_scale"]
        assert kind.block is not None
        rows = kind.shape[0]
        decode = {"float32": lambda d: d.view(np.float32), "float8_e8m0fnu": e8m0, "bfloat16": bf16}
        scales = decode.get(kind.dtype, lambda d: d.view(np.float16).astype(np.float32))(data.copy()).reshape(rows, -1)
        if name == "w13":  # scales are counted per half
            halves = [spread(half, kind.block, (ir, layout.hidden)) for half in np.split(scales, 2)]
            found.append(plain * np.concatenate(halves))
        else:
            found.append(plain * spread(scales, kind.block, shape))
    return found[0], found[1]


def assert_exact(checkpoint: Any, made: Model, tp: int) -> None:
    """Every rank's dequantised slice is the same slice of the whole, to the bit; blocks are the reference."""
    for layer in checkpoint.layers:
        cut = checkpoint.blocks(layer, tp)
        part = cut.layout.intermediate_per_rank
        for expert in range(cut.experts):
            gate, up, down = made.values[layer, expert]
            for rank in range(tp):
                kinds = {kind.name: walk(cut.of(expert, rank, n)) for n, kind in enumerate(cut.layout.kinds)}
                for name, data in checkpoint.reference(layer, expert, rank, tp).items():
                    assert data.tobytes() == kinds[name].tobytes(), (layer, expert, rank, name)
                assert [data.nbytes for data in kinds.values()] == list(cut.layout.sizes)
                w13, w2 = values_on_rank(kinds, cut.layout)
                mine = slice(rank * part, (rank + 1) * part)
                same(w13, np.concatenate([gate[mine], up[mine]]))
                same(w2, down[:, mine])


def same(seen: Floats, wanted: Floats) -> None:
    """Equal to the bit, but that any NaN is as good as another."""
    np.testing.assert_array_equal(np.isnan(seen), np.isnan(wanted))
    fill = np.float32(0)
    a, b = (np.where(np.isnan(x), fill, x).astype(np.float32).view(np.uint32) for x in (seen, wanted))
    np.testing.assert_array_equal(a, b)
