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


def test_case_12_fused_with_other_shapes_is_refused(tmp_path: Path) -> None:
    model = tiny_model(moe=())
    for layer in (1, 2):
        for name in ("gate_up_proj", "down_proj"):
            fused = f"model.layers.{layer}.mlp.experts.{name}"
            model.tensors[fused] = Tensor("F8_E4M3", (2, 2, 2), bytes(8))
            model.tensors[f"{fused}_scale_inv"] = Tensor("F32", (2, 2, 2), bytes(32))
    model.config["first_k_dense_replace"] = 1
    error = refused(model, tmp_path, "tensor_shape")
    assert "model.layers.1.mlp.experts.gate_up_proj has shape [2, 2, 2]" in error.message
    assert "[2, 512, 256]" in error.message


def test_case_12_one_fused_name_unlike_the_others(tmp_path: Path) -> None:
    model = tiny_model(moe=())
    for name in ("gate_up_proj", "down_proj", "side_proj"):
        model.tensors[f"model.layers.1.mlp.experts.{name}"] = Tensor("BF16", (2, 2, 2), bytes(16))
    assert "experts.side_proj" in refused(model, tmp_path, "unmatched_names").message


def test_case_13_unknown_model_shows_three_names(tmp_path: Path) -> None:
    model = tiny_model(model_type="dbrx", quantization_config=None)
    for old, new in (("mlp.experts", "ffn.experts"), ("gate_proj", "w1"), ("up_proj", "w3")):
        rename(model, old, new)
    error = refused(model, tmp_path, "family")
    assert "model_type dbrx" in error.message
    assert error.message.count("ffn.experts.0.") == 3
    assert "deepseek_v3" in error.hint and "qwen3_moe" in error.hint


@pytest.mark.parametrize(("model_type", "family"), [("mixtral", "mixtral"), ("minimax_m2", "minimax_m2")])
def test_case_13_w1_w3_w2_under_block_sparse_moe(tmp_path: Path, model_type: str, family: str) -> None:
    model = tiny_model(total=2, moe=(0, 1))
    model.config |= {"model_type": model_type, "intermediate_size": model.config.pop("moe_intermediate_size")}
    plain = Checkpoint.open(tiny_model(total=2, moe=(0, 1)).save(tmp_path / "plain"))
    words = {"mlp.experts": "block_sparse_moe.experts", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for old, new in words.items():
        rename(model, old, new)
    checkpoint = Checkpoint.open(model.save(tmp_path / "renamed"))
    assert (checkpoint.family, checkpoint.layers) == (family, (0, 1))
    for kind, data in plain.reference(1, 1, 1, 2).items():
        assert checkpoint.reference(1, 1, 1, 2)[kind].tobytes() == data.tobytes()


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


def as_fused(model: Model, layers: tuple[int, ...], model_type: str) -> None:
    """Plain experts, all in one tensor, on their side."""
    model.config |= {"quantization_config": None, "intermediate_size": 256, "hidden_size": 256}
    model.tensors = {name: tensor for name, tensor in model.tensors.items() if ".experts." not in name}
    path = "mlp" if model_type == "gpt_oss" else "feed_forward"
    for layer in layers:
        at = f"model.layers.{layer}.{path}.experts."
        model.tensors[at + "gate_up_proj"] = Tensor("BF16", (1, 256, 512), bytes(1 << 18))
        model.tensors[at + "down_proj"] = Tensor("BF16", (1, 256, 256), bytes(1 << 17))
        if model_type == "gpt_oss":
            model.tensors[at + "gate_up_proj_bias"] = Tensor("BF16", (1, 512), bytes(1024))
            model.tensors[at + "down_proj_bias"] = Tensor("BF16", (1, 256), bytes(512))


LAYER_RULES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("deepseek_v3", {"first_k_dense_replace": 3}, (3, 4, 5)),
    ("deepseek_v3", {"first_k_dense_replace": 1, "moe_layer_freq": 2}, (2, 4)),
    ("kimi_k2", {"first_k_dense_replace": 1, "moe_layer_freq": 1}, (1, 2, 3, 4, 5)),
    ("glm_moe_dsa", {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 3}, (3, 4, 5)),
    ("glm4_moe", {"moe_layer_freq": [0, 1, 0, 1, 1, 1]}, (1, 3, 4, 5)),
    ("qwen3_moe", {}, (0, 1, 2, 3, 4, 5)),
    ("qwen3_moe", {"decoder_sparse_step": 2}, (1, 3, 5)),
    ("qwen3_moe", {"mlp_only_layers": [0, 5]}, (1, 2, 3, 4)),
    ("qwen3_next", {"decoder_sparse_step": 3}, (2, 5)),
    ("deepseek_v32", {"first_k_dense_replace": 5}, (5,)),
    ("gpt_oss", {}, (0, 1, 2, 3, 4, 5)),
    ("llama4_text", {"interleave_moe_layer_step": 2}, (1, 3, 5)),
    ("llama4_text", {"moe_layers": [1, 4], "interleave_moe_layer_step": 2}, (1, 4)),
    ("llama4_text", {}, (0, 1, 2, 3, 4, 5)),
]


@pytest.mark.parametrize(("model_type", "config", "layers"), LAYER_RULES)
def test_case_15_layers_follow_the_config(
    tmp_path: Path, model_type: str, config: dict[str, Any], layers: tuple[int, ...]
) -> None:
    model = tiny_model(model_type=model_type, total=6, moe=layers, experts=1, **config)
    if model_type.startswith(("gpt_oss", "llama4")):
        as_fused(model, layers, model_type)
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


def test_experts_per_layer_may_differ(tmp_path: Path) -> None:
    model = tiny_model(experts=3, hidden=128, intermediate=128, n_routed_experts=[0, 3, 2])
    for name in [name for name in model.tensors if ".2.mlp.experts.2." in name]:
        del model.tensors[name]
    checkpoint = Checkpoint.open(model.save(tmp_path / "a"))
    assert (checkpoint.num_experts, checkpoint.experts(1), checkpoint.experts(2)) == (3, 3, 2)
    assert (checkpoint.blocks(1, 1).experts, checkpoint.blocks(2, 1).experts) == (3, 2)
    spans = checkpoint.describe()["experts"]
    assert [(span["first"], span["last"], span["value"]) for span in spans] == [(1, 1, 3), (2, 2, 2)]
    model.config["n_routed_experts"] = [0, 3, 3]
    assert "layer 2" in refused(model, tmp_path / "b", "experts").message
    model.config["n_routed_experts"] = [0, 3, 0]
    assert "gives no experts" in refused(model, tmp_path / "c", "experts").message


def test_claims_cost_nothing(tmp_path: Path) -> None:
    """Numbers in config.json or in a shape are never counted up to."""
    huge = 1 << 40
    error = refused(tiny_model(n_routed_experts=huge), tmp_path / "a", "experts")
    assert f"missing: 2 to {huge - 1}, beyond: none" in error.message
    assert "at most 100000" in refused(tiny_model(num_hidden_layers=huge), tmp_path / "b", "config_key").message
    model = tiny_model(num_nextn_predict_layers=huge)
    assert Checkpoint.open(model.save(tmp_path / "c")).describe()["prediction_layers"] == []
    refused(model, tmp_path / "d", "prediction_layers", prediction_layers=True)
    model = tiny_model(moe=(), first_k_dense_replace=1)
    for layer in (1, 2):
        for name in ("gate_up_proj", "down_proj"):
            model.tensors[f"model.layers.{layer}.mlp.experts.{name}"] = Tensor("F8_E4M3", (huge, 0, 0), b"")
    assert f"beyond: 2 to {huge - 1}" in refused(model, tmp_path / "e", "experts").message


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
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 1 << 70]}}, "weight_block_size"),
    ({"n_routed_experts": []}, "n_routed_experts"),
]


@pytest.mark.parametrize(("config", "words"), BAD_CONFIG)
def test_config_keys_are_checked(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    error = refused(tiny_model(**config), tmp_path, "config_key")
    assert words in error.message and "config.json" in error.message
