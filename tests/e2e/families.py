"""Tiny models of every family, made and saved by the family's own classes in transformers; experts quantised here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.e2e.quantisers import QUANTISERS

from layercast.checkpoint.synth import RECIPES, formats_of
from layercast.checkpoint.synth.synth import _quantization

HIDDEN, INNER, EXPERTS = 128, 512, 2

_USUAL = {
    "vocab_size": 64, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": None, "num_experts_per_tok": 2, "head_dim": 32,
}  # fmt: skip
_MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 2,
}  # fmt: skip
_ROUTED = {
    "intermediate_size": 64, "moe_intermediate_size": INNER, "n_routed_experts": EXPERTS, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
_QWEN = {"intermediate_size": 64, "moe_intermediate_size": INNER, "num_experts": EXPERTS}
_LOCAL = {"intermediate_size": INNER, "num_local_experts": EXPERTS}
_INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}
_LINEAR = {
    "linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 32, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v3": ("deepseek_v3", _ROUTED | _MLA),
    "deepseek-v3.2": ("deepseek_v32", _ROUTED | _MLA | _INDEXER),
    "glm-4.5": ("glm4_moe", _ROUTED),
    "glm-4.7-flash": ("glm4_moe_lite", _ROUTED | _MLA),
    "glm-5": ("glm_moe_dsa", _ROUTED | _MLA | _INDEXER),
    "qwen3-moe": ("qwen3_moe", _QWEN),
    "qwen3-next": ("qwen3_next", _QWEN | _LINEAR),
    "kimi-k2": ("deepseek_v3", _ROUTED | _MLA),  # the classes that it uses
    "minimax-m2": ("minimax_m2", _LOCAL),
    "mixtral": ("mixtral", _LOCAL),
    "gpt-oss": ("gpt_oss", _LOCAL),
    "llama-4": ("llama4_text", _LOCAL | {"intermediate_size_mlp": 64, "interleave_moe_layer_step": 2}),
}

# text models inside one of images and text: another prefix, the text's config within config.json
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "depth": 1,
    "num_heads": 2, "out_hidden_size": HIDDEN, "image_size": 28, "patch_size": 14, "vision_output_dim": 32,
    "projector_input_dim": 32, "projector_output_dim": 32,
}  # fmt: skip
NESTED = {"glm-4.5v": ("glm4v_moe", "glm-4.5"), "llama-4-scout": ("llama4", "llama-4")}

# what is published, or commonly made: family -> formats
IN_THE_WILD: dict[str, tuple[str, ...]] = {
    "deepseek-v3": ("fp8_block", "bf16", "int4"),
    "deepseek-v3.2": ("fp8_block", "bf16"),
    "glm-4.5": ("bf16", "fp8_channel", "fp8_block", "int4"),
    "glm-4.7-flash": ("bf16", "fp8_block"),
    "glm-5": ("bf16", "fp8_block", "int4"),
    "qwen3-moe": ("bf16", "fp8_block", "fp8_channel", "int4", "mxfp4", "mxfp8"),
    "qwen3-next": ("bf16", "fp8_block", "fp8_channel", "int4"),
    "kimi-k2": ("fp8_block", "bf16", "int4", "mxfp4"),
    "minimax-m2": ("fp8_block", "bf16", "mxfp8", "int4", "mxfp4"),
    "mixtral": ("bf16", "fp16", "fp8_channel", "int4"),
    "gpt-oss": ("mxfp4", "bf16"),
    "llama-4": ("bf16", "fp8_channel", "int4"),
}
IN_THE_WILD_NESTED = (("glm-4.5v", "bf16"), ("glm-4.5v", "fp8_block"), ("llama-4-scout", "bf16"))
CASES = [(like, form) for like, forms in IN_THE_WILD.items() for form in forms]


def save_model(path: Path, like: str, form: str) -> Path:
    """The family's own model saved as bf16 (or fp16), then the experts of the files put into `form`."""
    torch.manual_seed(0)
    dtype = torch.float16 if form == "fp16" else torch.bfloat16
    if like in NESTED:
        model_type, text = NESTED[like]
        parts = {"text_config": _USUAL | CONFIGS[text][1], "vision_config": _VISION}
        tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
        config = transformers.AutoConfig.for_model(model_type, **parts, **tokens)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype)
        like = text
    else:
        model_type, more = CONFIGS[like]
        config = transformers.AutoConfig.for_model(model_type, **(_USUAL | more))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".experts." in name and "bias" not in name:
                value.normal_(0, 0.05)  # some families begin with zeros
    model.save_pretrained(path)
    if form not in ("bf16", "fp16"):
        _quantise(path, like, form)
    if like == "kimi-k2":
        edit_config(path, {"model_type": "kimi_k2"})
    return path


def edit_config(path: Path, more: dict[str, Any]) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))


_FUSED = re.compile(r"(.*\.experts)\.(gate_up|down)_proj$")
_SINGLE = re.compile(r".*\.experts\.\d+\.\w+\.weight$")


def _quantise(path: Path, like: str, form: str) -> None:
    [file] = path.glob("*.safetensors")
    out: dict[str, torch.Tensor] = {}
    for name, value in load_file(file).items():
        if hit := _FUSED.match(name):
            out |= (_gpt_oss if like == "gpt-oss" else _llama4)(hit[1], hit[2], value, form)
        elif _SINGLE.match(name):
            out |= _stored(name.removesuffix(".weight"), value, form)
        else:
            out[name] = value
    save_file(out, file, metadata={"format": "pt"})
    recipe = RECIPES.get(like) or RECIPES["glm-5"]  # GLM-4.7-Flash is laid out as GLM-5
    assert form in formats_of(like if like in RECIPES else "glm-5")
    quantization = _quantization(recipe, form)
    assert quantization is not None
    edit_config(path, {"quantization_config": quantization})


def _stored(module: str, matrix: torch.Tensor, form: str) -> dict[str, torch.Tensor]:
    weight, scale = QUANTISERS[form](matrix)
    if form in ("fp8_block", "mxfp8"):
        return {f"{module}.weight": weight, f"{module}.weight_scale_inv": scale}
    if form == "fp8_channel":
        return {f"{module}.weight": weight, f"{module}.weight_scale": scale}
    found = {f"{module}.weight_packed": weight, f"{module}.weight_scale": scale}
    if form == "int4":
        found[f"{module}.weight_shape"] = torch.tensor(matrix.shape)
    return found


def _gpt_oss(at: str, word: str, value: torch.Tensor, form: str) -> dict[str, torch.Tensor]:
    """[expert, in, out] to blocks [expert, out, groups, 16] and scales [expert, out, groups]."""
    pairs = [QUANTISERS[form](expert.T.contiguous()) for expert in value]
    blocks = torch.stack([weight.reshape(weight.shape[0], -1, 16) for weight, _ in pairs])
    scales = torch.stack([scale for _, scale in pairs])
    return {f"{at}.{word}_proj_blocks": blocks, f"{at}.{word}_proj_scales": scales}


def _llama4(at: str, word: str, value: torch.Tensor, form: str) -> dict[str, torch.Tensor]:
    """One tensor per expert and projection, as quantised Llama-4 checkpoints have it."""
    found: dict[str, torch.Tensor] = {}
    for expert, both in enumerate(value):
        upright = both.T.contiguous()
        halves = zip(("gate", "up"), upright.chunk(2), strict=True) if word == "gate_up" else [("down", upright)]
        for projection, matrix in halves:
            found |= _stored(f"{at}.{expert}.{projection}_proj", matrix.contiguous(), form)
    return found
