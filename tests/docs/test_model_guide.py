"""docs/guides/model-that-does-not-fit.md by copy and paste: its programs, run as they stand there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.guide import GUIDES, folder_of, programs

GUIDE = GUIDES / "model-that-does-not-fit.md"
ABSENT = [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(GUIDE, tmp_path_factory.mktemp("guide"))


def run(folder: Path, *command: object) -> str:
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("streamed.py", ["next token: ", "'uses': 4"]),
        ("ranks.py", ["next token, by rank: ["]),
        ("layers.py", ["1 3 (16, 1024, 1024) float8_e4m3fn waited", "'wasted': 0"]),
    ],
)
def test_programs(folder: Path, name: str, words: list[str]) -> None:
    if ABSENT and name != "layers.py":
        pytest.skip(f"needs {', '.join(ABSENT)}")
    (folder / name).write_text(programs(GUIDE)[name])
    output = run(folder, sys.executable, name)
    assert all(word in output for word in words), output


def test_commands(folder: Path) -> None:
    """The inspect line; prefill has tests of its own."""
    text = GUIDE.read_text()
    assert "layercast prefill demo-checkpoint --random-tokens 64 --tp 2 --compare" in text
    seen = run(folder, sys.executable, "-c", "from layercast.cli import main; main()", "inspect", "demo-checkpoint")
    assert "fp8_block" in seen


@pytest.mark.parametrize("page", ["guides/model-that-does-not-fit.md", "concepts/stream.md", "concepts/layer.md"])
def test_links(page: str) -> None:
    at = GUIDE.parents[1] / page
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", at.read_text()):
        assert (at.parent / target).exists(), target
