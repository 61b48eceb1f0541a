"""The model of the protocol at its smallest sizes, and mutants that spin must refute."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("model", Path(__file__).parents[2] / "formal" / "model.py")
assert spec is not None and spec.loader is not None
model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(model)

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="spin or gcc is missing: apt-get install spin gcc",
)


@needs_spin
@pytest.mark.parametrize("name", model.SMALL)
def test_the_model_holds(name: str) -> None:
    assert model.check(model.SMALL[name], 300, "-O0")[0] == 0


@needs_spin
@pytest.mark.parametrize("name", model.MUTANTS)
def test_mutants_are_refuted(name: str) -> None:
    assert model.check(model.MUTANTS[name], 300, "-O0")[0] > 0
