"""The measurements of plain driver calls (benchmarks/gpu_checks) on the fake driver."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
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


WAYS = (
    "event, spun", "event, bell on 2nd stream", "host function, same stream", "word, spun", "word, every 50 us",
)  # fmt: skip


def test_every_way_of_completion_is_measured(checks: Checks, fake_cuda: FakeCuda) -> None:
    checks.run("completion")
    assert checks.check.failed == {} and checks.check.skipped == {}
    rows = {(row.measure, row.case): row.value for row in checks.check.rows}
    for way in WAYS:
        assert 0 <= rows["notice", f"{way}, median"] <= rows["notice", f"{way}, p99"]
        assert rows["3 MiB pieces: CPU", way] > 0 and rows["3 MiB pieces", way] > 0
    assert fake_cuda.number("host_functions") > 200 and fake_cuda.number("pageable_copies") == 0
    assert "soonest notice: " in checks.check.answers["completion"]


def test_completion_without_stream_memory_operations(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways that need them say so, the others are measured."""
    driver, has = checks.driver.Driver, checks.driver.Driver.has
    monkeypatch.setattr(driver, "has", lambda self, name: name != "cuStreamWriteValue32_v2" and has(self, name))
    checks.run("completion")
    assert checks.check.failed == {}
    lacking = {row.case: row.note for row in checks.check.rows if row.value is None}
    assert lacking == dict.fromkeys(WAYS[3:], "the driver has no cuStreamWriteValue32_v2")
    assert len([row for row in checks.check.rows if row.measure == "3 MiB pieces"]) == 3


def test_a_device_that_falls_off_fails_the_step(fake_cuda_library: Path) -> None:
    """In a process of its own: on such a device nothing can be given back."""
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), "--driver", str(fake_cuda_library), "--rounds", "1"]
    environment = {**os.environ, "FAKE_CUDA": "latency_ns=1000000;lost_at=9"}
    done = subprocess.run(
        [*command, "--only", "completion"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "FAILED completion: RuntimeError" in done.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout


def test_batches_are_held_against_a_call_for_each_copy(checks: Checks, fake_cuda: FakeCuda) -> None:
    """In every case there is something to batch."""
    measured = importlib.import_module("gpu_checks.batch")
    for name, tp in measured.CUTS:
        for path in ("staged", "direct, gaps"):
            before = fake_cuda.number("cuMemcpyBatchAsync_v2")
            rate, cpu = measured._measure(checks.check, name, tp, path)
            assert rate > 0 and cpu > 0
            assert fake_cuda.number("cuMemcpyBatchAsync_v2") > before, (name, path)
    assert len(checks.ratios("batch=yes over no")) == 6


@pytest.mark.parametrize(
    ("rates", "cpus", "verdict"),
    [
        ([1.0, 1.1], [1.0, 0.8], "pays"),
        ([1.0, 1.0], [0.9, 0.7], "pays"),
        ([1.0, 1.01], [1.0, 0.9], "does not pay"),
        ([0.9, 1.0], [0.5, 0.5], "does not pay"),
        ([0.9, 1.1], [0.5, 0.5], "depends on the shape"),
    ],
)
def test_the_verdict_on_batches(checks: Checks, rates: list[float], cpus: list[float], verdict: str) -> None:
    meaning = importlib.import_module("gpu_checks.batch")._meaning
    assert meaning(rates, cpus).startswith(f"batch=yes {verdict}: ")


def test_batches_of_a_driver_that_has_none(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.driver.Driver, "has", lambda self, name: name != "cuMemcpyBatchAsync_v2")
    checks.run("batch")
    assert checks.check.failed == {}
    assert [row.note for row in checks.check.rows] == ["the driver has no cuMemcpyBatchAsync_v2"]
    assert "batch=yes is of no use here" in checks.check.answers["batch"]


def test_batches_of_a_driver_that_does_not_support_them(checks: Checks, fake_cuda: FakeCuda) -> None:
    fake_cuda.set("fail=cuMemcpyBatchAsync_v2:1:801")
    checks.run("batch")
    assert checks.check.failed == {}
    [row] = checks.check.rows
    assert row.value is None and "cuMemcpyBatchAsync" in row.note and "NOT_SUPPORTED" in row.note


HANGS = """
import sys, time
import gpu_check
from gpu_checks.report import Row

def finds(check):
    check.rows.append(Row("found", "before", 1.0, ""))

def hangs(check):
    time.sleep(600)

gpu_check.STEPS = {finds: 0, hangs: 0}
sys.exit(gpu_check.main())
"""


def test_a_step_that_hangs_loses_none_of_what_was_found(checks: Checks, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    began = time.monotonic() - importlib.import_module("gpu_checks.report").LIMIT_S  # the time is up at once
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "GPU_CHECK_STARTED": str(began + 1)}
    command = [sys.executable, "-c", HANGS, "--json", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "FAILED hangs: did not end in its time" in done.stdout
    assert [row["measure"] for row in json.loads(out.read_text())["rows"]] == ["found"]
