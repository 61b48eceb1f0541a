"""Every family in every format that exists: transformers and this package read the same experts, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the e2e group is not installed")
transformers = pytest.importorskip("transformers", reason="the e2e group is not installed")
pytest.importorskip("accelerate", reason="the e2e group is not installed")
pytest.importorskip("compressed_tensors", reason="the e2e group is not installed")

from tests.e2e.families import CASES, EXPERTS, HIDDEN, IN_THE_WILD, IN_THE_WILD_NESTED, INNER, save_model  # noqa: E402
from tests.formats.format_table import MODELS  # noqa: E402
from tests.formats.format_tools import values_on_rank, walk  # noqa: E402

from layercast.checkpoint import Checkpoint, write_synthetic_checkpoint  # noqa: E402
from layercast.checkpoint.synth import RECIPES, formats_of  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]  # warnings of other packages


def load(path: Path) -> tuple[Any, dict[str, Any]]:
    """The whole model in float32, dequantised by transformers."""
    config = json.loads((path / "config.json").read_text())
    method = config.get("quantization_config", {}).get("quant_method")
    makers = {
        "fp8": transformers.FineGrainedFP8Config,
        "mxfp8": transformers.FineGrainedFP8Config,
        "mxfp4": transformers.Mxfp4Config,
        "compressed-tensors": transformers.CompressedTensorsConfig,
    }
    how: dict[str, Any] = {"quantization_config": makers[method](dequantize=True)} if method else {}
    nested = "text_config" in config
    model_class = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    if config["model_type"] == "kimi_k2":  # its own code is DeepSeek-V3's
        model_class = transformers.DeepseekV3ForCausalLM
        how["config"] = transformers.DeepseekV3Config.from_dict(config | {"model_type": "deepseek_v3"})
    return model_class.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **how)


def text_layers(model: Any) -> Any:
    """The layers of the text model, which may stand inside a model of images and text."""
    text = model.get_decoder()
    return (text if hasattr(text, "layers") else text.model).layers


def experts_of(model: Any, layer: int, model_type: str) -> tuple[np.ndarray, np.ndarray]:
    """float32 gate_up [experts, 2, I, H] and down [experts, H, I] of a layer in transformers."""
    block = text_layers(model)[layer]
    experts = next(getattr(block, name).experts for name in ("mlp", "feed_forward") if hasattr(block, name))
    if not hasattr(experts, "gate_up_proj"):  # a module per expert
        gate, up, down = (
            torch.stack([getattr(expert, f"{word}_proj").weight.detach() for expert in experts])
            for word in ("gate", "up", "down")
        )
        return torch.stack([gate, up], dim=1).float().numpy(), down.float().numpy()
    gate_up, down = experts.gate_up_proj.detach(), experts.down_proj.detach()
    if model_type in ("gpt_oss", "llama4_text", "llama4"):
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    if model_type == "gpt_oss":
        gate_up = torch.stack([gate_up[:, 0::2], gate_up[:, 1::2]], dim=1)
    else:
        gate_up = torch.stack(gate_up.chunk(2, dim=1), dim=1)
    return gate_up.float().contiguous().numpy(), down.float().contiguous().numpy()


def as_theirs(values: np.ndarray, form: str, model_type: str) -> np.ndarray:
    """compressed-tensors multiplies in the scale's bfloat16, which rounds once, but for FP8 in fused experts."""
    if form == "int4" or (form, model_type) == ("fp8_channel", "llama4_text"):
        return torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    return values


def same_bits(seen: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(seen.view(np.uint32), np.ascontiguousarray(wanted).view(np.uint32))


def assert_same_experts(path: Path, form: str) -> None:
    model, info = load(path)
    assert {key: list(value) for key, value in info.items() if value} == {}
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.format == form
        family = checkpoint.model_type
        for layer in checkpoint.layers:
            gate_up, down = experts_of(model, layer, family)
            for tp in (1, 2, 4):
                cut = checkpoint.blocks(layer, tp)
                part = cut.layout.intermediate_per_rank
                for expert in range(cut.experts):
                    for rank in range(tp):
                        kinds = {kind.name: walk(cut.of(expert, rank, n)) for n, kind in enumerate(cut.layout.kinds)}
                        w13, w2 = (as_theirs(each, form, family) for each in values_on_rank(kinds, cut.layout))
                        mine = slice(rank * part, (rank + 1) * part)
                        same_bits(w13, gate_up[expert][:, mine].reshape(2 * part, -1))
                        same_bits(w2, down[expert][:, mine])
                        if "w13_bias" in kinds:
                            assert_same_biases(model.model.layers[layer].mlp.experts, kinds, expert, mine)


def assert_same_biases(experts: Any, kinds: dict[str, np.ndarray], expert: int, mine: slice) -> None:
    gate_up, down = (getattr(experts, f"{word}_proj_bias").detach()[expert] for word in ("gate_up", "down"))
    wanted = torch.cat([gate_up[0::2][mine], gate_up[1::2][mine]])
    for name, value in (("w13_bias", wanted), ("w2_bias", down)):
        assert torch.equal(torch.from_numpy(kinds[name].copy()).view(torch.bfloat16).float(), value)


@pytest.mark.parametrize(("like", "form"), CASES)
def test_saved_by_the_familys_own_classes(tmp_path: Path, like: str, form: str) -> None:
    assert_same_experts(save_model(tmp_path, like, form), form)


@pytest.mark.parametrize(("like", "form"), IN_THE_WILD_NESTED)
def test_inside_a_model_of_images_and_text(tmp_path: Path, like: str, form: str) -> None:
    assert_same_experts(save_model(tmp_path, like, form), form)


def test_the_table_has_every_family_and_format() -> None:
    listed = {(model.like, form) for model in MODELS.values() for form in model.forms}
    tested = {(like, form) for like, forms in IN_THE_WILD.items() for form in forms}
    assert listed == {case for case in tested if case[0] in RECIPES}


# transformers has no names for Llama-4's experts one by one but in compressed-tensors
SYNTHETIC = [
    (like, form)
    for like in RECIPES
    for form in formats_of(like)
    if (like, form) not in (("llama-4", "fp8_block"), ("llama-4", "mxfp8"))
]


@pytest.mark.parametrize(("like", "form"), SYNTHETIC)
def test_written_by_synth(tmp_path: Path, like: str, form: str) -> None:
    """Valid for transformers: no tensor missing, none too many, the same experts."""
    path = tmp_path / "made"
    write_synthetic_checkpoint(path, like=like, form=form, hidden=HIDDEN, intermediate=INNER, experts=EXPERTS, vocab=64)
    assert_same_experts(path, form)
