"""Names and layers: what config.json says held against what the tensors are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ckpt_tools import Model, Tensor, tiny_model

from layercast.checkpoint import Checkpoint
from layercast.errors import CheckpointError


def refused(model: Model, path: Path, reason: str, **how: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(model.save(path), **how)
    assert caught.value.reason == reason, caught.value
    return caught.value


def rename(model: Model, old: str, new: str) -> None:
    model.tensors = {name.replace(old, new): tensor for name, tensor in model.tensors.items()}


def test_case_12_fused_beside_single_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    fused = "model.layers.1.mlp.experts.gate_up_proj"
    model.tensors[fused] = Tensor("F8_E4M3", (2, 2, 2), bytes(8))
    error = refused(model, tmp_path, "unmatched_names")
    assert fused in error.message


def test_case_12_fused_alone_is_refused_with_samples(tmp_path: Path) -> None:
    model = tiny_model(moe=())
    for layer in (1, 2):
        for name in ("gate_up_proj", "down_proj"):
            model.tensors[f"model.layers.{layer}.mlp.experts.{name}"] = Tensor("F8_E4M3", (2, 2, 2), bytes(8))
    error = refused(model, tmp_path, "naming")
    assert error.message.count("model.layers.") == 4  # the naming that is known, and three samples
    assert "model.layers.1.mlp.experts.gate_up_proj" in error.message


def test_case_13_unknown_model_shows_three_names(tmp_path: Path) -> None:
    model = tiny_model(model_type="mixtral", quantization_config=None)
    for old, new in (("mlp.experts", "block_sparse_moe.experts"), ("gate_proj", "w1"), ("up_proj", "w3")):
        rename(model, old, new)
    error = refused(model, tmp_path, "family")
    assert "model_type mixtral" in error.message
    assert error.message.count("block_sparse_moe.experts.0.") == 3
    assert "deepseek_v3" in error.hint and "qwen3_moe" in error.hint


def test_case_13_known_model_with_unknown_names(tmp_path: Path) -> None:
    model = tiny_model()
    rename(model, "mlp.experts", "ffn.experts")
    assert refused(model, tmp_path, "naming").message.count("ffn.experts") == 3


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model.", ""])
def test_case_13_prefixes(tmp_path: Path, prefix: str) -> None:
    checkpoint = Checkpoint.open(tiny_model(prefix=prefix).save(tmp_path))
    assert checkpoint.describe()["name_prefix"] == prefix
    assert checkpoint.layers == (1, 2)


def test_case_13_nested_text_config(tmp_path: Path) -> None:
    model = tiny_model(prefix="model.language_model.", model_type="glm4v_moe_text")
    quantization = model.config.pop("quantization_config")
    model.config = {
        "model_type": "glm4v_moe",
        "text_config": model.config,
        "quantization_config": quantization,
    }
    checkpoint = Checkpoint.open(model.save(tmp_path))
    assert (checkpoint.family, checkpoint.model_type, checkpoint.layers) == ("glm", "glm4v_moe_text", (1, 2))


def test_two_prefixes_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    model.tensors |= tiny_model(prefix="draft.").tensors
    assert "'draft.', 'model.'" in refused(model, tmp_path, "prefix").message


def test_prediction_module_under_its_own_prefix_is_left_out(tmp_path: Path) -> None:
    model = tiny_model(model_type="qwen3_next", total=2, moe=(0, 1))
    model.tensors |= tiny_model(moe=(0,), prefix="mtp.").tensors
    assert Checkpoint.open(model.save(tmp_path)).layers == (0, 1)


LAYER_RULES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("deepseek_v3", {"first_k_dense_replace": 3}, (3, 4, 5)),
    ("deepseek_v3", {"first_k_dense_replace": 1, "moe_layer_freq": 2}, (2, 4)),
    ("kimi_k2", {"first_k_dense_replace": 1, "moe_layer_freq": 1}, (1, 2, 3, 4, 5)),
    ("glm_moe_dsa", {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 3}, (3, 4, 5)),
    ("glm4_moe", {"moe_layer_freq": [0, 1, 0, 1, 1, 1]}, (1, 3, 4, 5)),
    ("qwen3_moe", {}, (0, 1, 2, 3, 4, 5)),
    ("qwen3_moe", {"decoder_sparse_step": 2}, (1, 3, 5)),
    ("qwen3_moe", {"mlp_only_layers": [0, 5]}, (1, 2, 3, 4)),
]


@pytest.mark.parametrize(("model_type", "config", "layers"), LAYER_RULES)
def test_case_15_layers_follow_the_config(
    tmp_path: Path, model_type: str, config: dict[str, Any], layers: tuple[int, ...]
) -> None:
    model = tiny_model(model_type=model_type, total=6, moe=layers, experts=1, **config)
    assert Checkpoint.open(model.save(tmp_path)).layers == layers


def test_case_15_dense_prediction_and_absent_layers(tmp_path: Path) -> None:
    model = tiny_model(total=3, moe=(1, 2, 3), num_nextn_predict_layers=1)
    checkpoint = Checkpoint.open(model.save(tmp_path))
    assert checkpoint.layers == (1, 2)
    assert checkpoint.describe()["prediction_layers"] == [3]
    for layer, words in (
        (0, "layer 0 is dense"),
        (3, "layer 3 is a prediction layer"),
        (4, "does not exist"),
    ):
        for call in (checkpoint.require_layer, checkpoint.experts, lambda layer: checkpoint.blocks(layer, 1)):
            with pytest.raises(CheckpointError, match=words) as caught:
                call(layer)
            assert caught.value.reason == "not_moe"
            assert "1 to 2" in caught.value.hint
    assert Checkpoint.open(tmp_path, prediction_layers=True).layers == (1, 2, 3)


def test_case_15_prediction_layers_that_are_not_there(tmp_path: Path) -> None:
    model = tiny_model(num_nextn_predict_layers=1)
    assert "they are 3" in refused(model, tmp_path, "prediction_layers", prediction_layers=True).message


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (0, ("layers 0 to 2 MoE", "only in config.json: 0, only among the tensors: none")),
        (2, ("layers 2 MoE", "only in config.json: none, only among the tensors: 1")),
    ],
)
def test_case_15_config_and_names_disagree(tmp_path: Path, first: int, words: tuple[str, str]) -> None:
    error = refused(tiny_model(first_k_dense_replace=first), tmp_path, "layers_disagree")
    assert "experts of layers 1 to 2" in error.message
    assert all(phrase in error.message for phrase in words)


def test_experts_must_be_all_there(tmp_path: Path) -> None:
    model = tiny_model(experts=12, hidden=128, intermediate=128, n_routed_experts=14)
    for name in [name for name in model.tensors if ".2.mlp.experts.10." in name]:
        del model.tensors[name]
    error = refused(model, tmp_path / "a", "experts")
    assert "layer 1" in error.message and "missing: 12 to 13" in error.message
    model.config["n_routed_experts"] = 12
    error = refused(model, tmp_path / "b", "experts")
    assert "layer 2" in error.message and "missing: 10," in error.message
    model.config["n_routed_experts"] = 8
    assert "beyond: 8 to 11" in refused(model, tmp_path / "c", "experts").message


def test_experts_are_ordered_as_numbers(tmp_path: Path) -> None:
    model = tiny_model(experts=12, moe=(2,), hidden=128, intermediate=128)
    checkpoint = Checkpoint.open(model.save(tmp_path))
    for expert in (2, 10, 11):
        wanted = model.tensors[f"model.layers.2.mlp.experts.{expert}.down_proj.weight"].data
        assert checkpoint.reference(2, expert, 0, 1)["w2"].tobytes() == wanted


BAD_CONFIG: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": "3"}, "num_hidden_layers"),
    ({"num_hidden_layers": None}, "num_hidden_layers"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"moe_intermediate_size": True}, "moe_intermediate_size"),
    ({"n_routed_experts": None}, "n_routed_experts"),
    ({"num_local_experts": 7}, "num_local_experts = 7"),
    ({"first_k_dense_replace": None}, "first_k_dense_replace"),
    ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types"),
    ({"quantization_config": "fp8"}, "quantization_config"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "weight_block_size"),
]


@pytest.mark.parametrize(("config", "words"), BAD_CONFIG)
def test_config_keys_are_checked(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    error = refused(tiny_model(**config), tmp_path, "config_key")
    assert words in error.message and "config.json" in error.message
