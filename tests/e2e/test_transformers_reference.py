"""The demo checkpoint as transformers loads it and as this package cuts it: the same experts to the bit."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layercast.checkpoint import Checkpoint, write_demo_checkpoint

NEEDED = ("torch", "transformers", "accelerate")  # transformers reads FP8 checkpoints only beside accelerate
ABSENT = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason=f"needs {', '.join(ABSENT)}, the independent reader to compare with"),
    pytest.mark.filterwarnings("ignore"),  # of other packages
    pytest.mark.timeout(300),
]

SIZES = {"layers": 4, "experts": 8, "hidden": 512, "intermediate": 256, "vocab": 256}
Floats = NDArray[np.float32]


def decode_e4m3(codes: NDArray[np.uint8]) -> Floats:
    """1 sign, 4 exponent (bias 7) and 3 mantissa bits, as OCP's 8-bit floating point defines them."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    return np.where(codes & 0x80, -value, value).astype(np.float32)


def dequantise(codes: NDArray[np.uint8], scales: NDArray[np.uint8], rows: int) -> Floats:
    """Weight times scale of its 128 x 128 block, in float32."""
    weight = decode_e4m3(codes).reshape(rows, -1)
    grid = scales.view(np.float32).reshape(rows // 128, -1)
    return weight * np.repeat(np.repeat(grid, 128, axis=0), 128, axis=1)


def walk(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    rows = [
        ctypes.string_at(
            int(block["src"]) + again * int(block["step"]) + row * int(block["stride"]), int(block["row_bytes"])
        )
        for block in blocks
        for again in range(int(block["count"]))
        for row in range(int(block["rows"]))
    ]
    return np.frombuffer(b"".join(rows), dtype=np.uint8)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(tmp_path_factory.mktemp("demo") / "checkpoint", **SIZES)


def load(path: Path, dtype: str) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    # asked for, so that a machine with an accelerator does the same
    plain = FineGrainedFP8Config(dequantize=True)
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), quantization_config=plain, output_loading_info=True
    )
    return model, info


@pytest.fixture(scope="module")
def loaded(demo: Path) -> tuple[Any, dict[str, Any]]:
    return load(demo, "float32")


@pytest.fixture
def checkpoint(demo: Path) -> Iterator[Checkpoint]:
    with Checkpoint.open(demo) as opened:
        yield opened


def test_transformers_finds_every_tensor_and_no_other(loaded: tuple[Any, dict[str, Any]]) -> None:
    model, info = loaded
    assert {key: list(value) for key, value in info.items() if value} == {}
    assert all(bool(value.isfinite().all()) for value in model.parameters())


def assert_same(checkpoint: Checkpoint, experts: list[tuple[Any, Any]], tp: int, through_blocks: bool) -> None:
    hidden, inner, part = SIZES["hidden"], SIZES["intermediate"], SIZES["intermediate"] // tp
    for layer, (gate_up, down) in zip(checkpoint.layers, experts, strict=True):
        blocks = checkpoint.blocks(layer, tp)
        for expert in range(checkpoint.experts(layer)):
            for rank in range(tp):
                kinds = checkpoint.reference(layer, expert, rank, tp)
                if through_blocks:
                    names = blocks.layout.names
                    kinds = {name: walk(blocks.of(expert, rank, at)) for at, name in enumerate(names)}
                mine = slice(rank * part, (rank + 1) * part)
                w13 = dequantise(kinds["w13"], kinds["w13_scale"], 2 * part)
                w2 = dequantise(kinds["w2"], kinds["w2_scale"], hidden)
                theirs = gate_up[expert].reshape(2, inner, hidden)[:, mine].reshape(2 * part, hidden)
                np.testing.assert_array_equal(w13.view(np.uint32), theirs.copy().view(np.uint32))
                np.testing.assert_array_equal(w2.view(np.uint32), down[expert][:, mine].copy().view(np.uint32))


@pytest.mark.parametrize("through_blocks", [False, True], ids=["reference", "blocks"])
@pytest.mark.parametrize("tp", [1, 2])
def test_dequantised_experts_are_equal_to_the_bit(
    loaded: tuple[Any, dict[str, Any]], checkpoint: Checkpoint, tp: int, through_blocks: bool
) -> None:
    layers = [layer.mlp.experts for layer in loaded[0].model.layers]
    experts = [(at.gate_up_proj.detach().numpy(), at.down_proj.detach().numpy()) for at in layers]
    assert_same(checkpoint, experts, tp, through_blocks)


def test_bfloat16_is_the_same_numbers_rounded(demo: Path, checkpoint: Checkpoint) -> None:
    import torch

    model, _ = load(demo, "bfloat16")
    kinds = checkpoint.reference(2, 5, 0, 1)
    ours = torch.from_numpy(dequantise(kinds["w13"], kinds["w13_scale"], 2 * SIZES["intermediate"]))
    theirs = model.model.layers[2].mlp.experts.gate_up_proj[5]
    assert theirs.dtype == torch.bfloat16
    assert torch.equal(ours.to(torch.bfloat16), theirs)
    assert bool(model(torch.arange(8)[None]).logits.isfinite().all())
