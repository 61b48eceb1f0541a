"""The demo checkpoint: whole, the same every time, and read by the format's reference implementation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
from ckpt_tools import walk

from layercast.checkpoint import Checkpoint, write_demo_checkpoint
from layercast.checkpoint.index import TensorIndex
from layercast.errors import CheckpointError, ConfigError

SMALL = {"layers": 4, "experts": 4, "hidden": 256, "intermediate": 256, "vocab": 64}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "d", **SMALL)


def test_it_opens_and_says_what_it_is(demo: Path) -> None:
    with Checkpoint.open(demo) as checkpoint:
        facts = checkpoint.describe()
        assert json.loads(json.dumps(facts)) == facts
        assert (checkpoint.family, checkpoint.format, checkpoint.layers) == (
            "qwen3_moe",
            "fp8_block",
            (0, 1, 2, 3),
        )
        assert (checkpoint.num_experts, checkpoint.experts(2)) == (4, 4)
        assert (facts["files"], facts["tp"]) == (3, [1, 2])
        blocks = checkpoint.blocks(3, 2)
        for number, name in enumerate(blocks.layout.names):
            assert walk(blocks.of(3, 1, number)) == checkpoint.reference(3, 3, 1, 2)[name].tobytes()


def test_the_reference_implementation_reads_it(demo: Path) -> None:
    for path in sorted(demo.glob("*.safetensors")):
        ours = TensorIndex.open(path)
        seen = dict(safetensors.deserialize(path.read_bytes()))
        assert set(seen) == set(ours)
        for name, tensor in seen.items():
            assert bytes(tensor["data"]) == ours.bytes_of(name).tobytes()


def test_codes_are_numbers_and_scales_distinct(demo: Path) -> None:
    index = TensorIndex.open(demo)
    for name in index:
        if name.endswith("proj.weight"):
            codes = index.bytes_of(name)
            assert not np.isin(codes, (0x7F, 0xFF)).any()
            assert len(np.unique(codes)) > 200
        if name.endswith("scale_inv"):
            scales = index.bytes_of(name).view(np.float32)
            assert len(np.unique(scales)) == len(scales)
            assert ((scales > 1e-4) & (scales < 1e-3)).all()


def test_the_same_arguments_give_the_same_bytes(demo: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    again = write_demo_checkpoint(tmp_path / "d", **SMALL, progress=lambda *seen: calls.append(seen))
    for path in sorted(demo.iterdir()):
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert (
        calls[-1][0]
        == calls[-1][1]
        == json.loads((again / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
    )
    other = write_demo_checkpoint(tmp_path / "e", **SMALL, seed=1)
    name = "model-00002-of-00003.safetensors"
    assert (other / name).read_bytes() != (demo / name).read_bytes()


def test_nothing_is_overwritten(demo: Path) -> None:
    with pytest.raises(CheckpointError, match="is not empty"):
        write_demo_checkpoint(demo, **SMALL)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"hidden": 300}, "hidden is 300"),
        ({"layers": 0}, "layers is 0"),
        ({"shards": 5}, "5 shards for 4 layers"),
    ],
)
def test_sizes_are_checked(tmp_path: Path, bad: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        write_demo_checkpoint(tmp_path / "d", **(SMALL | bad))
