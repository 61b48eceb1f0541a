"""`layercast doctor` and what it looks at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.fake_cuda import FakeCuda

from layercast.checkpoint import write_demo_checkpoint
from layercast.devices import Cuda
from layercast.doctor import examine_gpus, examine_host
from layercast.doctor.gpus import Link, read_link

COMMAND = [sys.executable, "-m", "layercast.cli", "doctor"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "model"
    write_demo_checkpoint(path)
    return path


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", **environment},
    )


def test_every_subject_is_there_in_words_and_as_json() -> None:
    done = run("--no-measure")
    assert (done.returncode, done.stderr) == (0, "")
    as_json = run("--no-measure", "--json")
    assert (as_json.returncode, as_json.stderr) == (0, "")
    findings = json.loads(as_json.stdout)["findings"]
    names = [finding["what"] for finding in findings]
    assert names[0] == "CUDA driver"
    assert names[-6:] == ["memory", "memlock", "huge pages", "pid namespace", "/dev/shm", "NUMA nodes"]
    for finding in findings:
        assert finding["what"] in done.stdout
        assert finding["found"] and finding["means"] and finding["state"] in ("ok", "note", "problem")


def test_gpus_are_measured(fake_cuda_library: Path) -> None:
    done = run("--json", LAYERCAST_CUDA_DRIVER=str(fake_cuda_library), FAKE_CUDA="devices=2")
    assert (done.returncode, done.stderr) == (0, "")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["CUDA driver"]["facts"] == {"version": 13000, "devices": 2}
    assert findings["GPU 1"]["facts"]["bus_id"] == "fade:01:00.0"
    measured = [finding for what, finding in findings.items() if what.startswith("GPU 1 from")]
    assert measured and all(finding["facts"]["bytes_per_second"] > 1e6 for finding in measured)
    assert "GB/s, pinned host memory to device" in measured[0]["found"]


def test_a_device_that_fails_is_a_finding_not_a_crash(fake_cuda: FakeCuda) -> None:
    fake_cuda.set("devices=1", "fail=cuMemHostRegister_v2:2:2")
    findings = examine_gpus(Cuda(driver=fake_cuda.path))
    fake_cuda.set("devices=4")
    [failed] = [finding for finding in findings if finding.state == "problem"]
    assert failed.what.startswith("GPU 0 from") and "CUDA_ERROR_OUT_OF_MEMORY" in failed.found


def test_a_driver_without_devices(fake_cuda: FakeCuda) -> None:
    fake_cuda.set("devices=0")
    findings = examine_gpus(Cuda(driver=fake_cuda.path))
    fake_cuda.set("devices=4")
    assert [(finding.what, finding.state) for finding in findings] == [("CUDA driver", "ok"), ("GPUs", "problem")]


def test_the_link_comes_from_nvml_or_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in str(read_link("0000:3B:00.0", tmp_path))
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    for name, value in (
        ("current_link_speed", "2.5 GT/s PCIe"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "8"),
        ("max_link_width", "16"),
    ):
        (folder / name).write_text(value + "\n")
    assert read_link("0000:3B:00.0", tmp_path) == Link(1, 8, 5, 16)
    asked: list[bytes] = []
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus_id: asked.append(bus_id),
        nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: 4,
        nvmlDeviceGetCurrPcieLinkWidth=lambda handle: 16,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = read_link("0000:3B:00.0", tmp_path)
    assert found == Link(4, 16, 5, 16) and asked == [b"0000:3B:00.0"]
    assert found.bytes_per_second == pytest.approx(63e9, rel=0.01)


def test_the_host_of_another_machine(tmp_path: Path) -> None:
    """What does not exist is said, not guessed."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1048576 kB\n")
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    pages = tmp_path / "sys/kernel/mm/transparent_hugepage"
    pages.mkdir(parents=True)
    (pages / "enabled").write_text("always madvise [never]\n")
    findings = {finding.what: finding for finding in examine_host(tmp_path)}
    assert findings["memory"].facts["bytes"] == 1 << 30
    assert "(4026532000): a container" in findings["pid namespace"].found
    assert findings["huge pages"].state == "note"
    assert findings["/dev/shm"].found == "No such file or directory"
    assert findings["NUMA nodes"].found == "the kernel does not say"


@pytest.mark.parametrize("command", [("demo",), ("stream", "--synthetic", "qwen3-30b", "--layers", "1")])
def test_without_a_driver_device_cuda_is_refused_in_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_text("no library")
    for environment in ({}, {"LAYERCAST_CUDA_DRIVER": str(library)}):
        if not environment and Path("/proc/driver/nvidia/version").exists():
            continue
        done = subprocess.run(
            [*COMMAND[:-1], *command, "--device", "cuda"],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "there is no CUDA driver" in done.stderr and "hint: " in done.stderr


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("options", [(), ("--direct",)])
def test_streams_end_to_end_on_the_fake_driver(
    fake_cuda_library: Path, model: Path, tp: int, options: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [*COMMAND[:-1], "stream", str(model), "--tp", str(tp), "--device", "cuda:0", "--verify", "--json", *options],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "/usr/bin:/bin", "LAYERCAST_CUDA_DRIVER": str(fake_cuda_library), "FAKE_CUDA": "devices=1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["verified"] is True and report["tp"] == tp and report["device"] == "cuda:0"


def test_demo_runs_on_the_fake_driver(fake_cuda_library: Path) -> None:
    done = subprocess.run(
        [*COMMAND[:-1], "demo", "--device", "cuda", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        env={"PATH": "/usr/bin:/bin", "LAYERCAST_CUDA_DRIVER": str(fake_cuda_library)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verified"] is True
