"""A small Qwen3-MoE checkpoint in block FP8, made of random numbers: to try things with, and to test against.

It has all tensors that transformers' Qwen3MoeForCausalLM expects. As in the published FP8 checkpoints of
this family the linear layers of attention are FP8 as well; embeddings, output head, routers and norms stay
bfloat16 and are listed in modules_to_not_convert.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.safetensors_writer import TensorSpec
from layercast.checkpoint.synth.random import constant, generator, normal
from layercast.checkpoint.writing import Progress, write_checkpoint
from layercast.errors import ConfigError
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
    progress: Progress | None = None,
) -> Path:
    """Write the checkpoint into the directory `path`, which must be new or empty, and return it.

    The default takes about 120 MB. `progress` is called with bytes written and bytes in all. The same
    arguments give the same bytes. Raises ConfigError for sizes that do not work, CheckpointError (reason
    "not_empty").
    """
    sizes = _Sizes(layers, experts, hidden, intermediate, vocab)
    _check(sizes, shards)
    return write_checkpoint(path, list(_tensors(sizes, seed)), _config(sizes), shards, progress)


def _check(sizes: _Sizes, shards: int) -> None:
    for name, value in (*vars(sizes).items(), ("shards", shards)):
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")
    for name, value in (("hidden", sizes.hidden), ("intermediate", sizes.intermediate)):
        if value % _GRID:
            raise ConfigError(f"{name} is {value}, expected a multiple of {_GRID}")
    if shards > sizes.layers:
        raise ConfigError(f"{shards} shards for {sizes.layers} layers", hint="use as many shards as layers at most")


def _tensors(sizes: _Sizes, seed: int) -> Iterator[TensorSpec]:
    hidden, inner = sizes.hidden, sizes.intermediate
    query, key_value = sizes.heads * _HEAD, sizes.key_value_heads * _HEAD
    yield normal("model.embed_tokens.weight", (sizes.vocab, hidden), seed)
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        yield constant(f"{at}.input_layernorm.weight", (hidden,), "BF16", 1.0)
        yield constant(f"{at}.post_attention_layernorm.weight", (hidden,), "BF16", 1.0)
        yield constant(f"{at}.self_attn.q_norm.weight", (_HEAD,), "BF16", 1.0)
        yield constant(f"{at}.self_attn.k_norm.weight", (_HEAD,), "BF16", 1.0)
        yield from _fp8(f"{at}.self_attn.q_proj", query, hidden, seed)
        yield from _fp8(f"{at}.self_attn.k_proj", key_value, hidden, seed)
        yield from _fp8(f"{at}.self_attn.v_proj", key_value, hidden, seed)
        yield from _fp8(f"{at}.self_attn.o_proj", hidden, query, seed)
        yield normal(f"{at}.mlp.gate.weight", (sizes.experts, hidden), seed)
        for expert in range(sizes.experts):
            yield from _fp8(f"{at}.mlp.experts.{expert}.gate_proj", inner, hidden, seed)
            yield from _fp8(f"{at}.mlp.experts.{expert}.up_proj", inner, hidden, seed)
            yield from _fp8(f"{at}.mlp.experts.{expert}.down_proj", hidden, inner, seed)
    yield constant("model.norm.weight", (hidden,), "BF16", 1.0)
    yield normal("lm_head.weight", (sizes.vocab, hidden), seed)


def _fp8(module: str, rows: int, columns: int, seed: int) -> Iterator[TensorSpec]:
    """A weight of e4m3 codes that are never NaN, and scales of which no two are alike."""
    grid = (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))

    def codes() -> NDArray[np.uint8]:
        found = generator(module, seed).integers(0, 256, (rows, columns), dtype=np.uint8)
        found -= (found & 0x7F == 0x7F).astype(np.uint8)  # 0x7f and 0xff are NaN; one below is 448
        return found

    def scales() -> NDArray[np.float32]:
        rng, blocks = generator(module + ".scale", seed), grid[0] * grid[1]
        steps = rng.permutation(blocks) + rng.uniform(0.1, 0.9)
        return (_SCALE * (1 + steps / blocks)).astype(np.float32)

    yield TensorSpec(f"{module}.weight", "F8_E4M3", (rows, columns), codes)
    yield TensorSpec(f"{module}.weight_scale_inv", "F32", grid, scales)


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
