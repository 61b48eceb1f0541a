"""`layercast prefill` and the demo's prefill, as a person runs them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from layercast.checkpoint import write_demo_checkpoint

NEEDED = ("torch", "transformers", "accelerate")
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.skipif(bool(ABSENT), reason=f"needs {', '.join(ABSENT)}"), pytest.mark.timeout(300)]
SIZES = {"layers": 3, "experts": 8, "hidden": 512, "intermediate": 256, "vocab": 256, "shards": 1}
COMMAND = (sys.executable, "-c", "import sys; from layercast.cli import main; sys.exit(main())")


def layercast(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(tmp_path_factory.mktemp("prefill") / "model", **SIZES)


def with_tokenizer(path: Path) -> None:
    """One token per word of a small vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {f"word{number}": number for number in range(1, SIZES["vocab"])} | {"?": 0}
    plain = Tokenizer(WordLevel(words, unk_token="?"))
    plain.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?").save_pretrained(path)


def test_a_text_in_chunks_on_two_ranks_compared(checkpoint: Path, tmp_path: Path) -> None:
    with_tokenizer(checkpoint)
    text = tmp_path / "prompt.txt"
    text.write_text(" ".join(f"word{number}" for number in range(1, 31)))
    done = layercast(
        "prefill",
        checkpoint,
        "--prompt-file",
        text,
        "--tp",
        2,
        "--chunk",
        12,
        "--dtype",
        "float32",
        "--compare",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tokens"] == 30 and report["difference"] < 1e-5
    assert [row["layer"] for row in report["per_layer"]] == [0, 1, 2] * 3, "three chunks, each through all layers"
    assert report["stream"]["wasted"] == 0
    assert [entry["text"].startswith("word") for entry in report["candidates"]] == [True] * 5
    assert report["memory"]["device_layers"] == 2 * 8 * report["per_layer"][0]["bytes"] // 8


def test_the_table_says_where_the_time_went(checkpoint: Path) -> None:
    done = layercast("prefill", checkpoint, "--random-tokens", 8, "--depth", 1)
    assert done.returncode == 0, done.stderr
    for words in ("waited for weights", "compute", "next token 1:", "1 device layer (", "8 tokens, 1 rank,"):
        assert words in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name either --prompt-file or --random-tokens"),
        (("--random-tokens", 0), "expected at least 1"),
        (("--random-tokens", 3, "--dtype", "int8"), "expected bfloat16, float16, float32"),
        (("--random-tokens", 3, "--chunk", 0), "--chunk 0: expected at least 1"),
        (("--random-tokens", 3, "--tp", 3), "T of 1 to 8 that work"),
        (("--prompt-file", "/does/not/exist"), "/does/not/exist"),
        (("--random-tokens", 3, "--device", "cuda"), "cuda: "),
        (("--random-tokens", 3, "--device", "bogus"), "bogus"),
        (("--random-tokens", 5000), "the prompt has 5000 tokens, the model's positions end at 4096"),
    ],
)
def test_what_cannot_work_is_one_line(checkpoint: Path, arguments: tuple[object, ...], words: str) -> None:
    done = layercast("prefill", checkpoint, *arguments)
    lines = [line for line in done.stderr.splitlines() if line.startswith("layercast: ")]
    assert done.returncode == 2 and len(lines) == 1 and words in lines[0], done.stderr


def test_what_cannot_be_computed_with_is_refused(tmp_path: Path) -> None:
    write_checkpoint = layercast("synth", tmp_path / "m", "--like", "kimi-k2", "--format", "int4")
    assert write_checkpoint.returncode == 0, write_checkpoint.stderr
    done = layercast("prefill", tmp_path / "m", "--random-tokens", 3)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "experts in int4 cannot be" in done.stderr


def test_the_demo_computes_too() -> None:
    done = layercast("demo", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["prefill"]
    assert [row["tp"] for row in rows] == [1, 2]
    assert all(row["difference"] < 1e-5 for row in rows)
