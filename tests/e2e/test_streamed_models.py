"""Models whose experts are streamed give the logits of the resident model, as transformers loads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

NEEDED = ("torch", "transformers", "accelerate")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if ABSENT:
    pytest.skip(f"needs {', '.join(ABSENT)}", allow_module_level=True)

import torch  # noqa: E402
import transformers  # noqa: E402
from tests.e2e import streamed  # noqa: E402
from tests.e2e.families import edit_config, save_model  # noqa: E402
from tests.e2e.quiet import quiet  # noqa: E402

from layercast import Checkpoint, errors, launch  # noqa: E402
from layercast.checkpoint import write_demo_checkpoint  # noqa: E402
from layercast.integrations.transformers import attach, model_without_experts  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

MODELS = ("demo", "qwen3-moe", "deepseek-v3", "glm-4.5")
FORMATS = {"demo": "fp8_block", "qwen3-moe": "bf16", "deepseek-v3": "fp8_block", "glm-4.5": "fp8_block"}
DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    quiet()
    at = tmp_path_factory.mktemp("models")
    found = {name: save_model(at / name, name, FORMATS[name]) for name in MODELS if name != "demo"}
    edit_config(found["deepseek-v3"], {"head_dim": 8})  # its rotary part, which this family takes for the head's size
    small = {"layers": 3, "experts": 8, "hidden": 512, "intermediate": 256, "vocab": 256, "shards": 2}
    return found | {"demo": write_demo_checkpoint(at / "demo", **small)}


@pytest.fixture(scope="module")
def whole(models: dict[str, Path]) -> dict[tuple[str, str], torch.Tensor]:
    """Logits of the resident models."""
    return {(name, dtype): resident(path, dtype) for name, path in models.items() for dtype in DTYPES}


@pytest.fixture(scope="module")
def two_ranks(models: dict[str, Path]) -> list[dict[tuple[str, str], torch.Tensor]]:
    plan = [(name, str(path)) for name, path in models.items()]
    return launch(streamed.all_logits, 2, args=(plan, DTYPES), timeout=280)


def resident(path: Path, dtype: str) -> torch.Tensor:
    more = {}
    if hasattr(config := transformers.AutoConfig.from_pretrained(path), "quantization_config"):
        more["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), **more).eval()
    with torch.no_grad():
        return model(streamed.prompt(config.vocab_size)).logits


def compare(name: str, dtype: str, ours: torch.Tensor, whole: dict[tuple[str, str], torch.Tensor]) -> None:
    exact = whole[name, "float32"]
    difference = float((ours.float() - exact).abs().max())
    if dtype == "float32":
        assert difference < 1e-5
    else:  # as near to the truth as the resident model in bfloat16
        theirs = float((whole[name, dtype].float() - exact).abs().max())
        assert difference <= 1.5 * theirs, f"{difference} against {theirs}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_one_rank(name: str, dtype: str, models: dict[str, Path], whole) -> None:
    ours, figures = streamed.logits(None, str(models[name]), dtype, depth=2)
    compare(name, dtype, ours, whole)
    assert figures["wasted"] == 0 and figures["uses"] > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_of_two_ranks(name: str, dtype: str, two_ranks, whole) -> None:
    for found in two_ranks:
        compare(name, dtype, found[name, dtype], whole)


def test_experts_take_no_memory_of_the_model(tmp_path: Path) -> None:
    path = write_demo_checkpoint(tmp_path / "m", layers=2, experts=8, hidden=512, intermediate=256, vocab=256, shards=1)
    bare = model_without_experts(path)
    assert not any(".experts." in name for name in bare.state_dict())
    assert all(value.device.type == "cpu" for value in (*bare.parameters(), *bare.buffers()))
    with pytest.raises(errors.ConfigError, match="none is attached"):
        bare(streamed.prompt(256))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    small = {"layers": 2, "experts": 8, "hidden": 512, "intermediate": 256, "vocab": 256, "shards": 1}
    path = write_demo_checkpoint(tmp_path / "a", **small)
    other = write_demo_checkpoint(tmp_path / "b", **{**small, "experts": 4})
    deeper = write_demo_checkpoint(tmp_path / "c", **{**small, "layers": 3})
    whole = transformers.AutoModelForCausalLM.from_pretrained(
        path, quantization_config=transformers.FineGrainedFP8Config(dequantize=True)
    )
    with Checkpoint.open(path) as same, pytest.raises(errors.ConfigError, match="materialised already"):
        attach(whole, same)
    with Checkpoint.open(other) as wrong, pytest.raises(errors.ConfigError, match=r"\(8, 512, 256\).*\(4, 512, 256\)"):
        attach(model_without_experts(path), wrong)
    with Checkpoint.open(deeper) as wrong, pytest.raises(errors.ConfigError, match=r"layers \[0, 1\].*\[0, 1, 2\]"):
        attach(model_without_experts(path), wrong)
    with Checkpoint.open(path) as same, pytest.raises(errors.ConfigError, match="no experts modules"):
        attach(torch.nn.Linear(2, 2), same)
