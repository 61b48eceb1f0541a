"""Model families: how expert tensors are named and which layers config.json makes MoE.

A family is one `Family` object in `FAMILIES`. Names follow
`{prefix}layers.L.mlp.experts.E.{gate,up,down}_proj.*`, where the prefix is `model.` or a nested text
model's, such as `model.language_model.`.

Reasons of CheckpointError raised here: family, config_key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from layercast.checkpoint.config import ModelConfig
from layercast.errors import CheckpointError


class ExpertName(NamedTuple):
    """The parts of an expert tensor's name; `projection` is gate, up or down, `suffix` what follows it."""

    prefix: str
    layer: int
    expert: int
    projection: str
    suffix: str


class MoeLayers(NamedTuple):
    """MoE layers of the base model by config.json, and the prediction layers that follow its last one."""

    base: tuple[int, ...]
    prediction: range


@dataclass(frozen=True)
class Family:
    """A family: the names of its expert tensors and the config keys that count experts and MoE layers."""

    name: str
    model_types: tuple[str, ...]
    layers_of: Callable[[ModelConfig, int], tuple[int, ...]]
    expert_keys: tuple[str, ...] = ("n_routed_experts", "num_experts", "num_local_experts")
    experts_path: str = "mlp.experts"
    projections: tuple[tuple[str, str], ...] = (
        ("gate", "gate_proj"),
        ("up", "up_proj"),
        ("down", "down_proj"),
    )

    def pattern(self) -> re.Pattern[str]:
        """Matches the names of expert tensors: prefix, layer, expert, the checkpoint's projection, suffix."""
        words = "|".join(re.escape(word) for _, word in self.projections)
        path = re.escape(self.experts_path)
        return re.compile(rf"((?:[^.]+\.)*?)layers\.(\d+)\.{path}\.(\d+)\.({words})\.(.+)")

    def parse(self, names: Iterable[str]) -> dict[str, ExpertName]:
        """The expert tensors among `names`, with their parts."""
        match, back = self.pattern().fullmatch, {word: key for key, word in self.projections}
        found = ((name, match(name)) for name in names)
        return {name: ExpertName(hit[1], int(hit[2]), int(hit[3]), back[hit[4]], hit[5]) for name, hit in found if hit}

    def tensor(self, prefix: str, layer: int, expert: int, projection: str, suffix: str) -> str:
        """The full name of one tensor."""
        word = dict(self.projections)[projection]
        return f"{prefix}layers.{layer}.{self.experts_path}.{expert}.{word}.{suffix}"

    def moe_layers(self, config: ModelConfig) -> MoeLayers:
        """MoE layers by config.json; CheckpointError (reason "config_key") where it does not say."""
        total = config.integer("num_hidden_layers", minimum=1)
        extra = max(config.integer(key, default=0) for key in ("num_nextn_predict_layers", "num_mtp_layers"))
        return MoeLayers(self.layers_of(config, total), range(total, total + extra))

    def num_experts(self, config: ModelConfig) -> int:
        """Routed experts per layer; the keys of config.json that give it must agree."""
        given = {key: config.integer(key, minimum=1) for key in self.expert_keys if config.has(key)}
        if len(set(given.values())) != 1:
            seen = ", ".join(f"{key} = {value}" for key, value in given.items()) or "none of them"
            raise config.error(" / ".join(self.expert_keys), f"must give one number of experts; seen: {seen}")
        return next(iter(given.values()))


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


def _listed(config: ModelConfig, key: str, total: int, words: Mapping[object, bool]) -> tuple[int, ...]:
    listed = config.get(key)
    if not isinstance(listed, list) or len(listed) < total or any(word not in words for word in listed):
        raise config.error(key, f"must be a list of {total} entries out of {list(words)}; seen: {listed!r}")
    return tuple(layer for layer in range(total) if words[listed[layer]])


_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25")
_GLM = (
    "glm4_moe",
    "glm4_moe_lite",
    "glm4v_moe",
    "glm4v_moe_text",
    "glm_moe_dsa",
    "glm5_next",
    "glm5_next_text",
)
_QWEN = ("qwen2_moe", "qwen3_moe", "qwen3_next")

FAMILIES: tuple[Family, ...] = (
    Family("deepseek", _DEEPSEEK, _leading_dense),
    Family("glm", _GLM, _leading_dense),
    Family("qwen3_moe", _QWEN, _sparse_step),
)
"""Refused so far: w1/w3/w2 under block_sparse_moe (MiniMax, Mixtral), fused three-dimensional."""


def detect_family(config: ModelConfig, names: Iterable[str]) -> Family:
    """The family of config.json's model_type. CheckpointError (reason "family") shows three of `names`."""
    for model_type in config.model_types:
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
