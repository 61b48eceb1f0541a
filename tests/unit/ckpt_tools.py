"""Small checkpoints for tests, written without the package's own writer, and a walker of blocks."""

from __future__ import annotations

import ctypes
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ITEMSIZE = {"F8_E4M3": 1, "U8": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4}


@dataclass
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass
class Model:
    """config.json and tensors of a small model, to be changed by a test before `save`."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def save(self, path: Path, *, shards: int = 1, index: bool | None = None) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(self.config))
        names, weight_map = list(self.tensors), {}
        for number in range(shards):
            file = "model.safetensors" if shards == 1 else f"part{number}.safetensors"
            part = names[number::shards]
            write_safetensors(path / file, {name: self.tensors[name] for name in part})
            weight_map |= dict.fromkeys(part, file)
        if index if index is not None else shards > 1:
            write_index(path, weight_map)
        return path


def write_index(path: Path, weight_map: dict[str, Any]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    header, data = {}, b""
    parts = []
    position = 0
    for name, tensor in tensors.items():
        end = position + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        parts.append(tensor.data)
        position = end
    data = b"".join(parts)
    write_raw(path, json.dumps(header).encode(), data)


def write_raw(path: Path, header: bytes, data: bytes = b"", *, length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def random_tensor(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(dtype, shape, rng.bytes(int(np.prod(shape)) * ITEMSIZE[dtype]))


def tiny_model(
    *,
    model_type: str = "deepseek_v3",
    total: int = 3,
    moe: tuple[int, ...] = (1, 2),
    experts: int = 2,
    hidden: int = 256,
    intermediate: int = 256,
    block: tuple[int, int] = (128, 128),
    prefix: str = "model.",
    seed: int = 0,
    **config: Any,
) -> Model:
    """Block-FP8 experts of random bytes in layers `moe`; more config keys as keywords."""
    rng = np.random.default_rng(seed)
    model = Model(
        {
            "model_type": model_type,
            "num_hidden_layers": total,
            "hidden_size": hidden,
            "moe_intermediate_size": intermediate,
            ("num_experts" if "qwen" in model_type else "n_routed_experts"): experts,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)},
        }
    )
    if "qwen" not in model_type:
        model.config["first_k_dense_replace"] = moe[0] if moe else total
    model.config |= config
    model.tensors[f"{prefix}embed_tokens.weight"] = random_tensor(rng, "BF16", (8, hidden))
    for layer in moe:
        model.tensors[f"{prefix}layers.{layer}.mlp.gate.weight"] = random_tensor(rng, "BF16", (experts, hidden))
        shared = f"{prefix}layers.{layer}.mlp.shared_experts.gate_proj.weight"
        model.tensors[shared] = random_tensor(rng, "F8_E4M3", (128, hidden))
        for expert in range(experts):
            add_expert(model, rng, f"{prefix}layers.{layer}.mlp.experts.{expert}", hidden, intermediate, block)
    return model


def add_expert(
    model: Model, rng: np.random.Generator, at: str, hidden: int, intermediate: int, block: tuple[int, int]
) -> None:
    for projection in ("gate_proj", "up_proj", "down_proj"):
        shape = (hidden, intermediate) if projection == "down_proj" else (intermediate, hidden)
        grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
        model.tensors[f"{at}.{projection}.weight"] = random_tensor(rng, "F8_E4M3", shape)
        model.tensors[f"{at}.{projection}.weight_scale_inv"] = random_tensor(rng, "F32", grid)


def walk(blocks: np.ndarray) -> bytes:
    """The bytes of blocks, one after the other, row after row."""
    return b"".join(
        ctypes.string_at(
            int(block["src"]) + again * int(block["step"]) + row * int(block["stride"]), int(block["row_bytes"])
        )
        for block in blocks
        for again in range(int(block["count"]))
        for row in range(int(block["rows"]))
    )
