"""What a model has beside experts, family by family: config.json and the tensors that transformers expects.

Names and shapes are those of the published checkpoints and of transformers' classes (`architectures`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from layercast.checkpoint.safetensors_writer import TensorSpec
from layercast.checkpoint.synth.random import constant, normal


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; `layers` counts dense ones too."""

    layers: int
    experts: int
    hidden: int
    intermediate: int
    vocab: int
    seed: int

    @property
    def heads(self) -> int:
        """Attention heads, of 64 each whatever H is."""
        return 2 * max(1, self.hidden // 128)


_HEAD = 64
_DENSE = 3  # a dense layer's intermediate size, in I
# multi-head latent attention, small: ranks and parts of a head do not depend on H
_MLA = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
_INDEXER = {"index_n_heads": 2, "index_head_dim": 64, "index_topk": 16}

Tensors = Iterator[TensorSpec]


def _linear(s: Sizes, name: str, rows: int, columns: int, *, bias: bool = False) -> Tensors:
    yield normal(f"{name}.weight", (rows, columns), s.seed)
    if bias:
        yield normal(f"{name}.bias", (rows,), s.seed)


def _ones(name: str, size: int) -> TensorSpec:
    return constant(name, (size,), "BF16", 1.0)


def _mlp(s: Sizes, at: str, inner: int) -> Tensors:
    for word, shape in (("gate", (inner, s.hidden)), ("up", (inner, s.hidden)), ("down", (s.hidden, inner))):
        yield from _linear(s, f"{at}.{word}_proj", *shape)


def _grouped(norm: str = "", *, bias: bool = False, gate: bool = False) -> Callable[[Sizes, str, int], Tensors]:
    """Grouped-query attention. `norm` of queries and keys: by "head", over the "whole", or none."""

    def tensors(s: Sizes, at: str, layer: int) -> Tensors:
        query, key = s.heads * _HEAD, s.heads // 2 * _HEAD
        yield from _linear(s, f"{at}.self_attn.q_proj", query * (2 if gate else 1), s.hidden, bias=bias)
        yield from _linear(s, f"{at}.self_attn.k_proj", key, s.hidden, bias=bias)
        yield from _linear(s, f"{at}.self_attn.v_proj", key, s.hidden, bias=bias)
        yield from _linear(s, f"{at}.self_attn.o_proj", s.hidden, query, bias=bias)
        if norm:
            yield _ones(f"{at}.self_attn.q_norm.weight", query if norm == "whole" else _HEAD)
            yield _ones(f"{at}.self_attn.k_norm.weight", key if norm == "whole" else _HEAD)
        if bias:
            yield normal(f"{at}.self_attn.sinks", (s.heads,), s.seed)

    return tensors


def _latent(s: Sizes, at: str, layer: int) -> Tensors:
    """DeepSeek-V3's attention."""
    rank, rope, query = _MLA["kv_lora_rank"], _MLA["qk_rope_head_dim"], _MLA["q_lora_rank"]
    whole, value = _MLA["qk_nope_head_dim"], _MLA["v_head_dim"]
    yield from _linear(s, f"{at}.self_attn.q_a_proj", query, s.hidden)
    yield _ones(f"{at}.self_attn.q_a_layernorm.weight", query)
    yield from _linear(s, f"{at}.self_attn.q_b_proj", s.heads * (whole + rope), query)
    yield from _linear(s, f"{at}.self_attn.kv_a_proj_with_mqa", rank + rope, s.hidden)
    yield _ones(f"{at}.self_attn.kv_a_layernorm.weight", rank)
    yield from _linear(s, f"{at}.self_attn.kv_b_proj", s.heads * (whole + value), rank)
    yield from _linear(s, f"{at}.self_attn.o_proj", s.hidden, s.heads * value)


def _sparse_latent(s: Sizes, at: str, layer: int) -> Tensors:
    """DeepSeek-V3.2's and GLM-5's: the same with an indexer."""
    yield from _latent(s, at, layer)
    heads, size = _INDEXER["index_n_heads"], _INDEXER["index_head_dim"]
    yield from _linear(s, f"{at}.self_attn.indexer.wq_b", heads * size, _MLA["q_lora_rank"])
    yield from _linear(s, f"{at}.self_attn.indexer.wk", size, s.hidden)
    yield from _linear(s, f"{at}.self_attn.indexer.weights_proj", heads, s.hidden)
    yield _ones(f"{at}.self_attn.indexer.k_norm.weight", size)
    yield constant(f"{at}.self_attn.indexer.k_norm.bias", (size,), "BF16", 0.0)


def _next_attention(s: Sizes, at: str, layer: int) -> Tensors:
    """Qwen3-Next's: linear attention, but for every fourth layer and the last."""
    if _next_layer_type(s, layer) == "full_attention":
        yield from _grouped("head", gate=True)(s, at, layer)
        return
    values, keys, size = s.heads, s.heads // 2, 32
    yield from _linear(s, f"{at}.linear_attn.in_proj_qkvz", 2 * (keys + values) * size, s.hidden)
    yield from _linear(s, f"{at}.linear_attn.in_proj_ba", 2 * values, s.hidden)
    yield normal(f"{at}.linear_attn.conv1d.weight", ((2 * keys + values) * size, 1, 4), s.seed)
    yield constant(f"{at}.linear_attn.A_log", (values,), "BF16", 0.0)
    yield constant(f"{at}.linear_attn.dt_bias", (values,), "BF16", 1.0)
    yield _ones(f"{at}.linear_attn.norm.weight", size)
    yield from _linear(s, f"{at}.linear_attn.out_proj", s.hidden, values * size)


def _next_layer_type(s: Sizes, layer: int) -> str:
    return "full_attention" if (layer + 1) % 4 == 0 or layer == s.layers - 1 else "linear_attention"


@dataclass(frozen=True)
class Recipe:
    """A family's structure. `experts`: where they lie; `words`: what gate, up and down are called.

    `moe(layer, layers)`: whether a layer has experts. `config`: what config.json says beside the usual.
    `router`: the router's tensors, name behind `moe_path` and whether it counts experts only. `shared`: the
    shared expert's name and size in I, "" for none. `fused`: formats in which all experts are one tensor.
    """

    model_type: str
    architecture: str
    attention: Callable[[Sizes, str, int], Tensors]
    moe_path: str
    experts_key: str
    inner_key: str
    config: Callable[[Sizes], dict[str, Any]]
    router: tuple[str, ...] = ("gate.weight",)
    shared: str = ""
    words: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    dense: int = 0  # leading dense layers
    every: int = 1  # of the rest every so-manieth has experts
    fused: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # formats; none named: all
    biases: bool = False

    def is_moe(self, layer: int, layers: int) -> bool:
        """Whether a layer has experts: with too few layers for dense ones all have."""
        dense, every = (self.dense, self.every) if layers > 1 else (0, 1)
        return layer >= dense and (layer + 1) % every == 0

    def head(self, s: Sizes) -> Tensors:
        """Tensors before the layers."""
        yield normal("model.embed_tokens.weight", (s.vocab, s.hidden), s.seed)

    def tail(self, s: Sizes) -> Tensors:
        """Tensors behind the layers."""
        yield _ones("model.norm.weight", s.hidden)
        yield normal("lm_head.weight", (s.vocab, s.hidden), s.seed)

    def layer(self, s: Sizes, layer: int) -> Tensors:
        """A layer's tensors but for its experts'."""
        at = f"model.layers.{layer}"
        yield _ones(f"{at}.input_layernorm.weight", s.hidden)
        yield _ones(f"{at}.post_attention_layernorm.weight", s.hidden)
        yield from self.attention(s, at, layer)
        moe = f"{at}.{self.moe_path}"
        if not self.is_moe(layer, s.layers):
            yield from _mlp(s, moe, _DENSE * s.intermediate)
            return
        for name in self.router:
            if name.endswith("weight"):
                yield normal(f"{moe}.{name}", (s.experts, s.hidden), s.seed)
            else:
                dtype = "F32" if "correction" in name else "BF16"
                yield constant(f"{moe}.{name}", (s.experts,), dtype, 0.0)
        if self.shared:
            yield from _mlp(s, f"{moe}.{self.shared}", s.intermediate)
        if self.shared == "shared_expert" and self.moe_path == "mlp":
            yield from _linear(s, f"{moe}.shared_expert_gate", 1, s.hidden)

    def as_config(self, s: Sizes) -> dict[str, Any]:
        """config.json without quantization_config."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": s.vocab,
            "hidden_size": s.hidden,
            self.inner_key: s.intermediate,
            "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads,
            "num_key_value_heads": s.heads // 2,
            self.experts_key: s.experts,
            "num_experts_per_tok": min(2, s.experts),
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 1,
        } | self.config(s)


def _leading(more: Mapping[str, Any]) -> Callable[[Sizes], dict[str, Any]]:
    def config(s: Sizes) -> dict[str, Any]:
        return {
            "intermediate_size": _DENSE * s.intermediate,
            "first_k_dense_replace": 1 if s.layers > 1 else 0,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            **more,
        }

    return config


def _mla(more: Mapping[str, Any]) -> Callable[[Sizes], dict[str, Any]]:
    return lambda s: _leading({**_MLA, "num_key_value_heads": s.heads, "moe_layer_freq": 1, **more})(s)


def _qwen(s: Sizes) -> dict[str, Any]:
    sparse = {"decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    return {"intermediate_size": _DENSE * s.intermediate, "head_dim": _HEAD, **sparse}


def _qwen_next(s: Sizes) -> dict[str, Any]:
    return _qwen(s) | {
        "layer_types": [_next_layer_type(s, layer) for layer in range(s.layers)],
        "shared_expert_intermediate_size": s.intermediate,
        "linear_num_value_heads": s.heads,
        "linear_num_key_heads": s.heads // 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    }


def _llama(s: Sizes) -> dict[str, Any]:
    return {
        "head_dim": _HEAD,
        "intermediate_size_mlp": _DENSE * s.intermediate,
        "interleave_moe_layer_step": 2 if s.layers > 1 else 1,
        "num_experts_per_tok": 1,
        "pad_token_id": 0,
    }


def _head_only(s: Sizes) -> dict[str, Any]:
    return {"head_dim": _HEAD}


_CORRECTED = ("gate.weight", "gate.e_score_correction_bias")
_W = ("w1", "w3", "w2")
_SPARSE = "block_sparse_moe"
_DEEPSEEK = ("mlp", "n_routed_experts", "moe_intermediate_size")
_LOCAL = ("num_local_experts", "intermediate_size")

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "deepseek-v3": Recipe(
            "deepseek_v3", "DeepseekV3ForCausalLM", _latent, *_DEEPSEEK, _mla({}), _CORRECTED, "shared_experts", dense=1
        ),
        "deepseek-v3.2": Recipe(
            "deepseek_v32", "DeepseekV32ForCausalLM", _sparse_latent, *_DEEPSEEK, _mla(_INDEXER), _CORRECTED,
            "shared_experts", dense=1,
        ),
        "glm-4.5": Recipe(
            "glm4_moe", "Glm4MoeForCausalLM", _grouped("head"), *_DEEPSEEK,
            _leading({"head_dim": _HEAD, "use_qk_norm": True}), _CORRECTED, "shared_experts", dense=1,
        ),
        "glm-5": Recipe(
            "glm_moe_dsa", "GlmMoeDsaForCausalLM", _sparse_latent, *_DEEPSEEK, _mla(_INDEXER), _CORRECTED,
            "shared_experts", dense=1,
        ),
        "qwen3-moe": Recipe(
            "qwen3_moe", "Qwen3MoeForCausalLM", _grouped("head"), "mlp", "num_experts", "moe_intermediate_size", _qwen
        ),
        "qwen3-next": Recipe(
            "qwen3_next", "Qwen3NextForCausalLM", _next_attention, "mlp", "num_experts", "moe_intermediate_size",
            _qwen_next, shared="shared_expert",
        ),
        "kimi-k2": Recipe(
            "kimi_k2", "DeepseekV3ForCausalLM", _latent, *_DEEPSEEK, _mla({}), _CORRECTED, "shared_experts", dense=1
        ),
        "minimax-m2": Recipe(
            "minimax_m2", "MiniMaxM2ForCausalLM", _grouped("whole"), _SPARSE, *_LOCAL, _head_only,
            ("gate.weight", "e_score_correction_bias"), words=_W,
        ),
        "mixtral": Recipe(
            "mixtral", "MixtralForCausalLM", _grouped(), _SPARSE, *_LOCAL, _head_only, words=_W
        ),
        "gpt-oss": Recipe(
            "gpt_oss", "GptOssForCausalLM", _grouped(bias=True), "mlp", *_LOCAL, _head_only,
            ("router.weight", "router.bias"), fused=("bf16", "mxfp4"), only=("bf16", "mxfp4"), biases=True,
        ),
        "llama-4": Recipe(
            "llama4_text", "Llama4ForCausalLM", _grouped(), "feed_forward", *_LOCAL, _llama, ("router.weight",),
            "shared_expert", every=2, fused=("bf16", "fp16"),
        ),
    }
)  # fmt: skip
"""The families that can be made, by the name that `--like` takes."""
