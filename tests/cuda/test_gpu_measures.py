"""The measurements of plain driver calls (benchmarks/gpu_checks) on the fake driver."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.fake_cuda import FakeCuda

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Checks:
    """The package as the script has it, and a check on the fake driver."""

    def __init__(self, fake: FakeCuda) -> None:
        self.script = importlib.import_module("gpu_check")
        self.driver = importlib.import_module("gpu_checks.driver")
        report: ModuleType = importlib.import_module("gpu_checks.report")
        self.check = report.Check(0, fake.path, 32, 1)

    def run(self, step: str) -> None:
        self.script.run(self.check, [step])

    def ratios(self, measure: str) -> list[float]:
        return [row.ratio for row in self.check.rows if row.measure == measure]


@pytest.fixture
def checks(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Checks:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return Checks(fake_cuda)


def test_columns_are_held_against_contiguous_copies(checks: Checks, fake_cuda: FakeCuda) -> None:
    checks.run("columns")
    assert checks.check.failed == {} and checks.check.skipped == {}
    assert len(checks.ratios("w2 columns")) == 6 and all(ratio > 0 for ratio in checks.ratios("w2 columns"))
    assert fake_cuda.number("cuMemcpy2DAsync_v2") > 0 and fake_cuda.number("pageable_copies") == 0
    assert "of contiguous copies: cutting w2 at load time" in checks.check.answers["columns"]


def test_columns_of_a_driver_that_lacks_2d_copies(checks: Checks, fake_cuda: FakeCuda) -> None:
    fake_cuda.set("fail=cuMemcpy2DAsync_v2:1:801")
    checks.run("columns")
    assert checks.check.failed == {}
    lacking, *others = [row for row in checks.check.rows if row.measure == "w2 columns"]
    assert lacking.value is None and "cuMemcpy2DAsync failed" in lacking.line() and len(others) == 3


def test_columns_that_arrive_wrong_fail(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    matrices = importlib.import_module("gpu_checks.columns").Matrices
    right = matrices.columns
    monkeypatch.setattr(matrices, "columns", lambda self, first, width: right(self, first - 1, width))
    checks.run("columns")
    assert "bytes arrived wrong" in checks.check.failed["columns"]


@pytest.mark.parametrize(
    ("field", "value", "broken"),
    [
        ("dstPitch", 128, None),  # rows that would overlap: an error, as in the driver
        ("Height", 65, "to memory that is not this device's"),
        ("srcY", 1, "across the border of a registration"),
    ],
)
def test_the_fake_driver_holds_2d_copies_to_the_rules(
    checks: Checks, fake_cuda: FakeCuda, field: str, value: int, broken: str | None
) -> None:
    constant = checks.driver.Constant
    with checks.driver.opened_driver(checks.check) as driver:
        host, there, stream = driver.pinned(64 * 256), driver.allocate(64 * 256), driver.stream()
        copy = checks.driver.Copy2D(
            srcMemoryType=constant.CU_MEMORYTYPE_HOST, srcHost=host.ctypes.data, srcPitch=256,
            dstMemoryType=constant.CU_MEMORYTYPE_DEVICE, dstDevice=there, dstPitch=256, WidthInBytes=256, Height=64,
        )  # fmt: skip
        call = driver.function("cuMemcpy2DAsync_v2")
        assert call(copy, stream) == 0
        driver.call("cuStreamSynchronize", stream)
        setattr(copy, field, value)
        assert call(copy, stream) == 1
    assert [text.removeprefix("cuMemcpy2DAsync ") for text in fake_cuda.violations] == ([broken] if broken else [])
    fake_cuda.reset()
