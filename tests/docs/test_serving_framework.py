"""docs/guides/serving-framework.md by copy and paste: its programs, run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.guide import GUIDES, folder_of, programs

GUIDE = GUIDES / "serving-framework.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(GUIDE, tmp_path_factory.mktemp("guide"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dropin.py", [f"rank {rank}: layer {layer}, 12585984 bytes" for rank in (0, 1) for layer in range(4)]),
        ("native.py", ["[128, 128] experts were right"]),
    ],
)
def test_programs(folder: Path, name: str, words: list[str]) -> None:
    (folder / name).write_text(programs(GUIDE)[name])
    done = subprocess.run(
        [sys.executable, "-W", "error", name], cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words), done.stdout


def test_links() -> None:
    text = GUIDE.read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        assert (GUIDE.parent / path).exists() if path else anchor in anchors, target
