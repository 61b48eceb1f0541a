"""A small Qwen3-MoE checkpoint in block FP8, made of random numbers: to try things with, and to test against.

It has all tensors that transformers' Qwen3MoeForCausalLM expects. As in the published FP8 checkpoints of
this family the linear layers of attention are FP8 as well; embeddings, output head, routers and norms stay
bfloat16 and are listed in modules_to_not_convert.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.config import CONFIG_NAME
from layercast.checkpoint.index import INDEX_NAME
from layercast.checkpoint.safetensors_writer import TensorSpec, write_safetensors
from layercast.errors import CheckpointError, ConfigError
from layercast.geometry import BLOCK

_HEAD = 128  # attention's head_dim
_SCALE = 2.0e-4  # e4m3 codes drawn evenly have an RMS near 100: weights come out near 0.02 to 0.03
_GRID = 256  # hidden and intermediate are multiples, so that two ranks work


@dataclass(frozen=True)
class _Sizes:
    layers: int
    experts: int
    hidden: int
    intermediate: int
    vocab: int

    @property
    def heads(self) -> int:
        return self.hidden // _HEAD

    @property
    def key_value_heads(self) -> int:
        return self.heads // 2


def write_demo_checkpoint(
    path: Path | str,
    *,
    layers: int = 4,
    experts: int = 16,
    hidden: int = 1024,
    intermediate: int = 512,
    vocab: int = 2048,
    shards: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the checkpoint into the directory `path`, which must be new or empty, and return it.

    The default takes about 120 MB. `progress` is called with bytes written and bytes in all. The same
    arguments give the same bytes. Raises ConfigError for sizes that do not work, CheckpointError (reason
    "not_empty").
    """
    sizes = _Sizes(layers, experts, hidden, intermediate, vocab)
    _check(sizes, shards)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise CheckpointError(
            f"{directory} is not empty",
            reason="not_empty",
            hint="give a new directory, nothing is overwritten",
        )
    tensors = list(_tensors(sizes, seed))
    total, done = sum(tensor.nbytes for tensor in tensors), 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    weight_map: dict[str, str] = {}
    for number, part in enumerate(_split(tensors, shards, total), 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        write_safetensors(directory / name, part, metadata={"format": "pt"}, progress=count)
        weight_map |= {tensor.name: name for tensor in part}
    _write_json(directory / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(directory / CONFIG_NAME, _config(sizes))
    return directory


def _check(sizes: _Sizes, shards: int) -> None:
    for name, value in (*vars(sizes).items(), ("shards", shards)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")
    for name, value in (("hidden", sizes.hidden), ("intermediate", sizes.intermediate)):
        if value % _GRID:
            raise ConfigError(f"{name} is {value}, expected a multiple of {_GRID}")
    if shards > sizes.layers:
        raise ConfigError(f"{shards} shards for {sizes.layers} layers", hint="use as many shards as layers at most")


def _split(tensors: list[TensorSpec], shards: int, total: int) -> list[list[TensorSpec]]:
    """Cut the list into parts of about equal bytes, none of them empty."""
    parts: list[list[TensorSpec]] = [[]]
    done = 0
    for tensor in tensors:
        if done * shards >= total * len(parts) and len(parts) < shards:
            parts.append([])
        parts[-1].append(tensor)
        done += tensor.nbytes
    return parts


def _tensors(sizes: _Sizes, seed: int) -> Iterator[TensorSpec]:
    hidden, inner = sizes.hidden, sizes.intermediate
    query, key_value = sizes.heads * _HEAD, sizes.key_value_heads * _HEAD
    yield _bf16("model.embed_tokens.weight", (sizes.vocab, hidden), seed)
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        yield _ones(f"{at}.input_layernorm.weight", hidden)
        yield _ones(f"{at}.post_attention_layernorm.weight", hidden)
        yield _ones(f"{at}.self_attn.q_norm.weight", _HEAD)
        yield _ones(f"{at}.self_attn.k_norm.weight", _HEAD)
        yield from _fp8(f"{at}.self_attn.q_proj", query, hidden, seed)
        yield from _fp8(f"{at}.self_attn.k_proj", key_value, hidden, seed)
        yield from _fp8(f"{at}.self_attn.v_proj", key_value, hidden, seed)
        yield from _fp8(f"{at}.self_attn.o_proj", hidden, query, seed)
        yield _bf16(f"{at}.mlp.gate.weight", (sizes.experts, hidden), seed)
        for expert in range(sizes.experts):
            yield from _fp8(f"{at}.mlp.experts.{expert}.gate_proj", inner, hidden, seed)
            yield from _fp8(f"{at}.mlp.experts.{expert}.up_proj", inner, hidden, seed)
            yield from _fp8(f"{at}.mlp.experts.{expert}.down_proj", hidden, inner, seed)
    yield _ones("model.norm.weight", hidden)
    yield _bf16("lm_head.weight", (sizes.vocab, hidden), seed)


def _random(name: str, seed: int) -> np.random.Generator:
    # each tensor has numbers of its own, whatever the sizes of the others
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _fp8(module: str, rows: int, columns: int, seed: int) -> Iterator[TensorSpec]:
    """A weight of e4m3 codes that are never NaN, and scales of which no two are alike."""
    grid = (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))

    def codes() -> NDArray[np.uint8]:
        found = _random(module, seed).integers(0, 256, (rows, columns), dtype=np.uint8)
        found -= (found & 0x7F == 0x7F).astype(np.uint8)  # 0x7f and 0xff are NaN; one below is 448
        return found

    def scales() -> NDArray[np.float32]:
        generator, blocks = _random(module + ".scale", seed), grid[0] * grid[1]
        steps = generator.permutation(blocks) + generator.uniform(0.1, 0.9)
        return (_SCALE * (1 + steps / blocks)).astype(np.float32)

    yield TensorSpec(f"{module}.weight", "F8_E4M3", (rows, columns), codes)
    yield TensorSpec(f"{module}.weight_scale_inv", "F32", grid, scales)


def _bf16(name: str, shape: tuple[int, int], seed: int) -> TensorSpec:
    def make() -> NDArray[np.uint16]:
        values = _random(name, seed).normal(0, 0.02, shape).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    return TensorSpec(name, "BF16", shape, make)


def _ones(name: str, size: int) -> TensorSpec:
    return TensorSpec(name, "BF16", (size,), lambda: np.full(size, 0x3F80, dtype=np.uint16))


def _config(sizes: _Sizes) -> dict[str, Any]:
    per_layer = (
        "input_layernorm",
        "post_attention_layernorm",
        "mlp.gate",
        "self_attn.q_norm",
        "self_attn.k_norm",
    )
    kept = [f"model.layers.{layer}.{name}" for layer in range(sizes.layers) for name in per_layer]
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "intermediate_size": 3 * sizes.hidden,
        "moe_intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_value_heads,
        "head_dim": _HEAD,
        "num_experts": sizes.experts,
        "num_experts_per_tok": min(4, sizes.experts),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": list(BLOCK),
            "modules_to_not_convert": ["lm_head", "model.embed_tokens", "model.norm", *kept],
        },
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
