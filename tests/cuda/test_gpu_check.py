"""benchmarks/gpu_check.py on the fake driver: every step runs, and what it needs and lacks is said."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.fake_cuda import FakeCuda, ModelStream

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_it_prints_a_table_and_writes_json(fake_cuda_library: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    steps = "bandwidth,throughput,batch,columns,completion,baseline,latency,registration"
    command = [sys.executable, str(SCRIPT), "--driver", str(fake_cuda_library), "--mib", "64", "--rounds", "1"]
    done = subprocess.run([*command, "--only", steps, "--json", str(out)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    seen = {row["measure"] for row in report["rows"]}
    assert seen >= {"pinned copy", "staged", "direct", "handoff", "latency", "registration"}
    assert seen >= {"batch=yes over no", "batch=yes: copying thread", "w2 contiguous", "w2 columns"}
    assert seen >= {"notice", "3 MiB pieces", "3 MiB pieces: CPU"}
    assert set(report["answers"]) == {"batch", "columns", "completion"}
    assert all(f"{name}: {what}" in done.stdout for name, what in report["answers"].items())
    assert set(report["seconds"]) == set(steps.split(","))
    assert report["failed"] == {} and report["device"].startswith("cuda:0 (fake GPU")
    assert "torch" in report["skipped"].get("baseline", "torch")
    for row in report["rows"]:
        assert row["value"] >= 0 and (row["measure"] not in ("staged", "direct") or row["ratio"] > 0)
        assert row["case"] in done.stdout


def test_without_a_driver_every_step_says_so(tmp_path: Path) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    command = [sys.executable, str(SCRIPT), "--only", "bandwidth,latency"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout.count("there is no CUDA driver") == 2


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as where it is run
    return importlib.import_module("gpu_check")


def test_the_page_lists_the_steps_and_their_seconds(script: ModuleType) -> None:
    page = (SCRIPT.parents[1] / "docs" / "reference" / "cuda.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE)
    assert [(name, int(seconds)) for name, seconds in listed] == [
        (step.__name__, seconds) for step, seconds in script.STEPS.items()
    ]


def test_all_steps_together_have_their_time(script: ModuleType) -> None:
    assert sum(script.STEPS.values()) <= importlib.import_module("gpu_checks.report").LIMIT_S


class Tensor:
    """Of torch's tensors what the script uses."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.array[index])

    def copy_(self, source: Tensor, non_blocking: bool) -> None:
        self.array[:] = source.array


class Event:
    def record(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture
def torch(fake_cuda: FakeCuda) -> Iterator[SimpleNamespace]:
    """A torch whose GPU is the fake one: its stream is the driver's, its matmuls take a while."""
    model = ModelStream(fake_cuda)
    stream = SimpleNamespace(cuda_stream=model.handle, synchronize=lambda: None)
    yield SimpleNamespace(
        device=lambda kind, index: index,
        uint8=np.uint8,
        bfloat16="bfloat16",
        ones=lambda shape, dtype, pin_memory: Tensor(np.ones(shape, dtype)),
        empty=lambda shape, dtype, device: Tensor(np.empty(shape, dtype)),
        randn=lambda shape, dtype, device: None,
        matmul=lambda a, b: time.sleep(0.0002),
        cuda=SimpleNamespace(
            Stream=lambda device: stream,
            Event=Event,
            stream=lambda stream: contextlib.nullcontext(),
            synchronize=lambda device: None,
        ),
    )
    model.close()


def test_the_steps_that_want_torch(
    script: ModuleType, torch: SimpleNamespace, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.with_torch, "_torch", lambda: torch)
    check = script.Check(0, fake_cuda.path, 32, 1)
    check.bandwidth = 1e9
    script.run(check, ["baseline", "overlap"])
    assert check.failed == {} and check.skipped == {}
    assert [row.case for row in check.rows if row.measure == "prefill"] == [
        "a layer's copies alone", "its matmuls alone", "both at once",
    ]  # fmt: skip
    assert len([row for row in check.rows if row.measure == "torch loop"]) == 3
    assert fake_cuda.number("cuStreamGetCtx") >= 4  # its stream waited for layers, and layers for it
