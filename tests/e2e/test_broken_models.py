"""A model that fails on one rank: no rank computes on with what is not the sum."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ABSENT = [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]
if ABSENT:
    pytest.skip(f"needs {', '.join(ABSENT)}", allow_module_level=True)

import torch  # noqa: E402
from tests.e2e import broken, streamed  # noqa: E402
from tests.e2e.quiet import quiet  # noqa: E402

from layercast import errors, launch  # noqa: E402
from layercast.checkpoint import write_demo_checkpoint  # noqa: E402
from layercast.integrations.transformers import attach, load, model_without_experts  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    quiet()
    at = tmp_path_factory.mktemp("broken") / "model"
    return write_demo_checkpoint(at, layers=4, experts=4, hidden=512, intermediate=256, vocab=256, shards=1)


@pytest.mark.parametrize("depth", [2, 4])
def test_a_rank_that_raises_is_every_ranks_failure(path: Path, depth: int) -> None:
    (there, spent), (here, _) = launch(broken.raises_once, 2, args=(str(path), depth), timeout=250)
    assert here[0].startswith("KeyError") and "the model's own words" in here[0]
    assert "logits" not in there + here, "a sum of different layers"
    assert all("ModelFailed" in text and "rank 1" in text and "the model's own words" in text for text in there)
    assert spent < 30


def test_the_callers_process_group_is_left_alone(path: Path) -> None:
    assert launch(broken.beside_the_callers_own, 2, args=(str(path),), timeout=250) == [2.0, 2.0]


def test_misuse_of_an_attached_model_is_refused(path: Path, tmp_path: Path) -> None:
    with load(path) as attached:
        with pytest.raises(errors.ConfigError, match="has a stream already"):
            attach(attached.model, attached.stream.source)
        with pytest.raises(errors.ConfigError, match="cannot be saved"):
            attached.model.save_pretrained(tmp_path)
        with pytest.raises(errors.ConfigError, match="have no gradients"):
            attached.model(streamed.prompt(256))
        with torch.no_grad():
            attached.model(streamed.prompt(256))
    with torch.no_grad(), pytest.raises(errors.StateError, match="closed"):
        attached.model(streamed.prompt(256))
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k2"}')
    with pytest.raises(errors.ConfigError, match="cannot read it"):
        model_without_experts(tmp_path)
