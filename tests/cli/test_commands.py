"""What a person sees: exit codes, one-line errors, JSON on stdout and nothing else there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from layercast.checkpoint import Checkpoint, write_demo_checkpoint
from layercast.cli.demo import compare_independently
from layercast.sources import CheckpointSource

COMMAND = [sys.executable, "-m", "layercast.cli"]
LIMIT_S = 90


def layercast(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "model"
    write_demo_checkpoint(path)
    return path


def test_demo_verifies_and_says_so() -> None:
    done = layercast("demo", "--no-prefill")
    assert (done.returncode, done.stderr) == (0, "")
    assert "verified: every byte" in done.stdout
    assert done.stdout.count("│") > 4 * 8


def test_demo_json_is_one_object() -> None:
    done = layercast("demo", "--no-prefill", "--json", "--tp", 4)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert report["verified"] is True
    assert (report["tp"], report["layers"]) == (4, 4)
    assert report["experts"] == 4 * 16
    assert report["bytes"] > 0 and report["seconds"] > 0 and report["gbps"] > 0
    assert all(row["wrong"] == {} for row in report["per_layer"])


@pytest.mark.parametrize("device", ["host", "link:5GB/s", "link:0,latency=50us"])
@pytest.mark.parametrize("tp", [1, 2])
def test_stream_verifies_a_checkpoint(checkpoint: Path, device: str, tp: int) -> None:
    done = layercast("stream", checkpoint, "--tp", tp, "--device", device, "--verify", "--json", "--layers", "1:2")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["verified"] is True
    assert [row["layer"] for row in report["per_layer"]] == [1, 2]


def test_stream_synthetic_needs_no_file() -> None:
    done = layercast("stream", "--synthetic", "qwen3-30b", "--layers", 1, "--tp", 2, "--verify", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verified"] is True


def test_wrong_bytes_are_found(checkpoint: Path, tmp_path: Path) -> None:
    """The demo's verifier objects to one flipped bit, and to the bytes of another checkpoint."""
    source = CheckpointSource(Checkpoint.open(checkpoint))
    shares = [source.checkpoint.reference(0, expert, 0, 2).values() for expert in range(16)]
    views = [np.stack([kind.ravel().view(np.uint8) for kind in kinds]) for kinds in zip(*shares, strict=True)]
    assert compare_independently(source, 0, 0, 2, views) == []
    views[3][7, -1] ^= 1
    assert compare_independently(source, 0, 0, 2, views) == [7]
    other = tmp_path / "other"
    write_demo_checkpoint(other, seed=1)
    assert len(compare_independently(CheckpointSource(Checkpoint.open(other)), 0, 0, 2, views)) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name either a checkpoint or a shape"),
        (["/does/not/exist"], "/does/not/exist"),
        (["--synthetic", "gpt-5"], "there are glm-5-next"),
        (["--synthetic", "glm-5-next", "--layers", "43"], "expected 1 to 42"),
        (["--synthetic", "glm-5-next", "--layers", "0:2"], "no MoE layer lies in it"),
        (["--synthetic", "glm-5-next", "--layers", "5:x"], "expected a count"),
        (["--synthetic", "glm-5-next", "--tp", "3"], "T of 1 to 8 that work"),
        (["--synthetic", "glm-5-next", "--tp", "0"], "--tp 0"),
        (["--synthetic", "glm-5-next", "--slots", "0"], "slots: expected"),
        (["--synthetic", "glm-5-next", "--piece-bytes", "0"], "piece_bytes: expected"),
        (["--synthetic", "glm-5-next", "--device", "gpu"], "devices: host, link"),
        (["--synthetic", "glm-5-next", "--device", "link:fast"], "link"),
        (["--synthetic", "glm-5-next", "--verify", "--device", "link:1GB/s,move=no"], "moves no bytes"),
    ],
)
def test_a_users_error_is_one_line_with_exit_code_2(arguments: list[str], words: str) -> None:
    done = layercast("stream", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_exits_2() -> None:
    assert layercast("stream", "--no-such-option").returncode == 2


def test_a_failed_stream_exits_1() -> None:
    done = layercast("stream", "--synthetic", "qwen3-30b", "--layers", 1, "--device", "link:1GB/s,fail=3", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "copy 3 failed" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "doctor", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert done.stderr == "layercast: the output could not be written: No space left on device\n"


def test_a_reader_that_has_gone_and_a_closed_output_need_no_words() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*COMMAND, "--version"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
    shell = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "--version"]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_it_quickly_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "LAYERCAST_RUNTIME_DIR": str(tmp_path / "run")}
    command = [*COMMAND, "stream", "--synthetic", "glm-5-next", "--device", "link:100MB/s,move=no", "--tp", "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    limit = time.monotonic() + LIMIT_S
    while not list((tmp_path).glob("run/*.layercast")) and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.5)  # into the first layer
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: parent and ranks
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert said.strip() == ""
    assert not list((tmp_path / "run").glob("*.layercast"))


def test_version() -> None:
    assert layercast("--version").stdout.strip() == "0.1.0"
