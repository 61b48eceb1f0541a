"""Model families: how expert tensors are named and which layers config.json makes MoE.

A family is one `Family` object in `FAMILIES`: model types, namings, config keys, rule of layers. Names stand
behind a prefix, `model.` or a nested text model's, such as `model.language_model.`.

Reasons of CheckpointError raised here: family, config_key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from layercast.checkpoint.config import ModelConfig
from layercast.checkpoint.naming import Fused, Naming, PerExpert
from layercast.errors import CheckpointError

LAYERS_CAP = 100_000
"""Layers beyond which config.json is not believed: lists of them are made."""


class MoeLayers(NamedTuple):
    """MoE layers of the base model by config.json, and the prediction layers that follow its last one."""

    base: tuple[int, ...]
    prediction: range


@dataclass(frozen=True)
class Family:
    """A family: the names of its expert tensors and the config keys that count experts and MoE layers.

    `biases`: whether experts have biases, as kinds of their own.
    """

    name: str
    model_types: tuple[str, ...]
    namings: tuple[Naming, ...]
    layers_of: Callable[[ModelConfig, int], tuple[int, ...]]
    inner_key: str = "moe_intermediate_size"
    expert_keys: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts")
    biases: bool = False

    def moe_layers(self, config: ModelConfig) -> MoeLayers:
        """MoE layers by config.json; CheckpointError (reason "config_key") where it does not say."""
        total = config.integer("num_hidden_layers", minimum=1)
        if total > LAYERS_CAP:
            raise config.error("num_hidden_layers", f"is {total}, at most {LAYERS_CAP} are read")
        keys = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")
        extra = max(config.integer(key, default=0) for key in keys)
        return MoeLayers(self.layers_of(config, total), range(total, total + extra))

    def num_experts(self, config: ModelConfig) -> Callable[[int], int]:
        """Routed experts of a layer, by the layer's number.

        config.json gives one number, or a list with one per layer of the model (0 where there are none); its
        keys must agree.
        """
        given = {key: config.counts(key) for key in self.expert_keys if config.has(key)}
        if len(set(given.values())) != 1:
            seen = ", ".join(f"{key} = {value}" for key, value in given.items()) or "none of them"
            raise config.error(" / ".join(self.expert_keys), f"must give one number of experts; seen: {seen}")
        counts = next(iter(given.values()))
        if isinstance(counts, int):
            return lambda layer: counts
        if not counts:
            raise config.error(
                " / ".join(self.expert_keys), "must give a number of experts, or one per layer; seen: []"
            )
        # a prediction layer behind the last is as the last
        return lambda layer: counts[min(layer, len(counts) - 1)]


def _leading_dense(config: ModelConfig, total: int) -> tuple[int, ...]:
    """DeepSeek's and GLM's rule: first_k_dense_replace and moe_layer_freq, or a list of all layers."""
    if config.has("mlp_layer_types"):
        return _listed(config, "mlp_layer_types", total, {"sparse": True, "dense": False})
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return _listed(config, "moe_layer_freq", total, {1: True, 0: False})
    if not config.has("first_k_dense_replace"):
        raise config.error("first_k_dense_replace", "is missing, and so is mlp_layer_types: which layers are MoE?")
    first = config.integer("first_k_dense_replace")
    step = config.integer("moe_layer_freq", default=1, minimum=1)
    return tuple(layer for layer in range(total) if layer >= first and layer % step == 0)


def _sparse_step(config: ModelConfig, total: int) -> tuple[int, ...]:
    """Qwen's rule: every decoder_sparse_step-th layer, counted from 1, but for those in mlp_only_layers."""
    dense = set(config.integers("mlp_only_layers"))
    step = config.integer("decoder_sparse_step", default=1, minimum=1)
    return tuple(layer for layer in range(total) if layer not in dense and (layer + 1) % step == 0)


def _every(config: ModelConfig, total: int) -> tuple[int, ...]:
    """Mixtral's, MiniMax-M2's and gpt-oss's rule: all of them."""
    return tuple(range(total))


def _interleaved(config: ModelConfig, total: int) -> tuple[int, ...]:
    """Llama-4's rule: the list moe_layers, or every interleave_moe_layer_step-th layer, counted from 1."""
    if config.has("moe_layers"):
        listed = config.integers("moe_layers")
        if beyond := [layer for layer in listed if layer >= total]:
            raise config.error("moe_layers", f"names layers {beyond}, num_hidden_layers is {total}")
        return tuple(sorted(set(listed)))
    step = config.integer("interleave_moe_layer_step", default=1, minimum=1)
    return tuple(range(step - 1, total, step))


def _listed(config: ModelConfig, key: str, total: int, words: Mapping[object, bool]) -> tuple[int, ...]:
    listed = config.get(key)
    if not isinstance(listed, list) or len(listed) < total or any(word not in words for word in listed):
        raise config.error(key, f"must be a list of {total} entries out of {list(words)}; seen: {listed!r}")
    return tuple(layer for layer in range(total) if words[listed[layer]])


_MLP = (PerExpert("mlp.experts"), Fused("mlp.experts"))
_SPARSE = (PerExpert("block_sparse_moe.experts", ("w1", "w3", "w2")), Fused("mlp.experts"))
# on its side where plain; quantised checkpoints have a tensor per expert
_LLAMA4 = (Fused("feed_forward.experts", transposed=True), PerExpert("feed_forward.experts"))
# gate and up take turns; bf16 on its side, mxfp4 (`_blocks`, `_scales`) upright
_GPT_OSS = (Fused("mlp.experts", interleaved=True, transposed=True),)

_GLM = (
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm4v_moe_text",
    "glm_moe_dsa",
    "glm5_next",
    "glm5_next_text",
)

FAMILIES: tuple[Family, ...] = (
    Family("deepseek", ("deepseek_v2", "deepseek_v3", "deepseek_v32"), _MLP, _leading_dense),
    Family("kimi", ("kimi_k2", "kimi_k25"), _MLP, _leading_dense),
    Family("glm", _GLM, _MLP, _leading_dense),
    Family("qwen3_moe", ("qwen2_moe", "qwen3_moe"), _MLP, _sparse_step),
    Family("qwen3_next", ("qwen3_next",), _MLP, _sparse_step),
    Family("minimax_m2", ("minimax_m2",), _SPARSE, _every, "intermediate_size"),
    Family("mixtral", ("mixtral",), _SPARSE, _every, "intermediate_size"),
    Family("gpt_oss", ("gpt_oss",), _GPT_OSS, _every, "intermediate_size", biases=True),
    Family("llama4", ("llama4_text", "llama4"), _LLAMA4, _interleaved, "intermediate_size"),
)


def detect_family(config: ModelConfig, names: Iterable[str]) -> Family:
    """The family of config.json's model_type. CheckpointError (reason "family") shows three of `names`.

    The whole model's type goes before the language model's within it: Kimi-K2.5 nests DeepSeek-V3's.
    """
    for model_type in reversed(config.model_types):
        for family in FAMILIES:
            if model_type in family.model_types:
                return family
    known = ", ".join(model_type for family in FAMILIES for model_type in family.model_types)
    seen = " / ".join(config.model_types) or "missing"
    raise CheckpointError(
        f"{config.path}: model_type {seen} is not supported; {samples(names)}",
        reason="family",
        hint=f"supported: {known}",
    )


def samples(names: Iterable[str], count: int = 3) -> str:
    """A phrase that shows what tensors are called: experts' names first, others where there are none."""
    every = sorted(names)
    found = [name for name in every if ".experts." in name] or every
    return "tensors are named like " + ", ".join(islice(found, count))
