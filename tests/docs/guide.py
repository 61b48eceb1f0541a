"""Guides by copy and paste: their programs, by the file name in the first line."""

from __future__ import annotations

import re
from pathlib import Path

from layercast.checkpoint.demo import write_demo_checkpoint

GUIDES = Path(__file__).parents[2] / "docs/guides"


def programs(guide: Path) -> dict[str, str]:
    blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks}


def folder_of(guide: Path, path: Path) -> Path:
    """`path`, with the checkpoint that the guide has its reader write."""
    assert "write_demo_checkpoint('demo-checkpoint')" in guide.read_text()
    write_demo_checkpoint(path / "demo-checkpoint")
    return path
