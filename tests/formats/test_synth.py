"""Synthetic checkpoints and the commands `synth` and `inspect`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from format_tools import values_on_rank

from layercast.checkpoint import Checkpoint, write_synthetic_checkpoint
from layercast.checkpoint.synth import RECIPES, formats_of
from layercast.errors import CheckpointError, ConfigError, GeometryError

EVERY = [(like, form) for like in RECIPES for form in formats_of(like)]
SMALL: dict[str, Any] = {"layers": 2, "experts": 2, "hidden": 128, "intermediate": 64, "vocab": 16}


@pytest.mark.parametrize(("like", "form"), EVERY)
def test_it_opens_as_what_it_was_made(tmp_path: Path, like: str, form: str) -> None:
    checkpoint = Checkpoint.open(write_synthetic_checkpoint(tmp_path / "c", like=like, form=form, **SMALL))
    assert checkpoint.format == form
    assert like.replace("-", "").startswith(checkpoint.family.split("_")[0])
    facts = checkpoint.describe()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["not_understood"]["count"] == 0
    for layer in checkpoint.layers:
        w13, w2 = values_on_rank(checkpoint.reference(layer, 1, 0, 1), checkpoint.layout(1))
        for values in (w13, w2):
            assert np.isfinite(values).all()
            assert 0.003 < values.std() < 0.12


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    how = {"like": "gpt-oss", "form": "mxfp4"} | SMALL
    first = write_synthetic_checkpoint(tmp_path / "a", **how, progress=lambda *seen: calls.append(seen))
    again, other = (write_synthetic_checkpoint(tmp_path / str(seed), **how, seed=seed) for seed in (0, 1))
    for file in sorted(first.iterdir()):
        assert (again / file.name).read_bytes() == file.read_bytes()
    [weights] = first.glob("*.safetensors")
    assert (other / weights.name).read_bytes() != weights.read_bytes()
    total = json.loads((first / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    assert calls[-1] == (total, total) and calls == sorted(calls)
    assert {name for name, _ in safetensors.deserialize(weights.read_bytes())} == set(
        json.loads((first / "model.safetensors.index.json").read_text())["weight_map"]
    )


def test_which_layers_are_moe(tmp_path: Path) -> None:
    for like, layers in (("deepseek-v3", (1, 2)), ("qwen3-moe", (0, 1, 2)), ("llama-4", (1,))):
        path = write_synthetic_checkpoint(tmp_path / like, like=like, form="bf16", **(SMALL | {"layers": 3}))
        assert Checkpoint.open(path).layers == layers


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"like": "gpt-5"}, ConfigError, "no family 'gpt-5'"),
        ({"form": "int3"}, ConfigError, "is not made in 'int3'"),
        ({"like": "gpt-oss"}, ConfigError, "is not made in 'int4'"),
        ({"experts": 0}, ConfigError, "experts is 0"),
        ({"intermediate": 48}, GeometryError, "I = 48 is no whole number of groups of 32"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, bad: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        write_synthetic_checkpoint(tmp_path / "c", **({"like": "qwen3-moe", "form": "int4"} | SMALL | bad))
    assert not (tmp_path / "c").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(CheckpointError, match="is not empty"):
        write_synthetic_checkpoint(tmp_path, like="mixtral", form="bf16", **SMALL)


def layercast(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "layercast.cli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "140"}
    )


def test_synth_and_inspect(tmp_path: Path) -> None:
    sizes = ("--layers", 2, "--experts", 3, "--hidden", 256, "--intermediate", 384, "--vocab", 16, "--seed", 7)
    made = layercast("synth", tmp_path / "c", "--like", "glm-4.5", "--format", "fp8_block", *sizes, "--json")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["bytes"] > 3 * 3 * 256 * 384
    same = write_synthetic_checkpoint(
        tmp_path / "d", like="glm-4.5", form="fp8_block", experts=3, hidden=256, intermediate=384, vocab=16, seed=7
    )
    [weights] = same.glob("*.safetensors")
    assert (tmp_path / "c" / weights.name).read_bytes() == weights.read_bytes()

    seen = layercast("inspect", tmp_path / "c", "--json")
    assert (seen.returncode, seen.stderr) == (0, "")
    found = json.loads(seen.stdout)
    assert found == Checkpoint.open(tmp_path / "c").describe()
    assert (found["family"], found["format"], found["tp"]) == ("glm", "fp8_block", [1, 3])
    by_t = {row["tp"]: row for row in found["per_tp"]}
    assert by_t[3]["bytes"] == 3 * by_t[3]["expert_bytes"] == by_t[3]["layer_bytes"]
    assert "I = 384 cannot be cut for T = 2 ranks" in by_t[2]["refused"]

    shown = layercast("inspect", tmp_path / "c")
    assert (shown.returncode, shown.stderr) == (0, "")
    for words in ("glm (model_type glm4_moe)", "fp8_block", "128 x 128", "hidden size H = 256", "size I = 384",
                  "--finer cuts there too",
                  "w13_scale 6x2", "I / T = 192 rows do not end on a block's", "one per block of"):  # fmt: skip
        assert words in shown.stdout
    finer = layercast("inspect", tmp_path / "c", "--finer", "--json")
    assert json.loads(finer.stdout)["tp"] == [1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "/does/not/exist"], "/does/not/exist does not exist"),
        (["synth", "{tmp}/new", "--like", "gpt-5", "--format", "bf16"], "no family 'gpt-5' (hint: there are deepseek"),
        (["synth", "{tmp}", "--like", "mixtral", "--format", "bf16"], "is not empty"),
    ],
)
def test_a_users_error_is_one_line_with_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "something").touch()
    done = layercast(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr


def test_layers_unlike_the_others_are_shown(tmp_path: Path) -> None:
    from format_tools import model

    made, plain = model("fp8_block", layers=(1, 2)), model("bf16", layers=(2,))
    kept = {name: tensor for name, tensor in made.tensors.items() if ".layers.1." in name}
    made.tensors = kept | plain.tensors
    odd = "model.layers.1.mlp.experts.0.up_proj.input_scale"
    made.tensors[odd] = ("F32", np.zeros(1, np.float32))
    done = layercast("inspect", made.save(tmp_path))
    assert "fp8_block (layers 1 to 1), bf16 (layers 2 to 2)" in done.stdout
    assert f"1 tensors of experts, such as {odd}" in done.stdout
