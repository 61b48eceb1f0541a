"""The environment: run-time directory and torchrun's variables."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import layercast
from layercast.config import Environment
from layercast.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job 7/a",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def test_runtime_dir_in_its_order() -> None:
    both = {"LAYERCAST_RUNTIME_DIR": "/a/b", "XDG_RUNTIME_DIR": "/run/user/1"}
    assert Environment(both).runtime_dir == Path("/a/b")
    assert Environment({**both, "LAYERCAST_RUNTIME_DIR": ""}).runtime_dir == Path("/run/user/1/layercast")
    assert Environment({}).runtime_dir == Path(f"/tmp/layercast-{os.geteuid()}")


@pytest.mark.parametrize("name", ["LAYERCAST_RUNTIME_DIR", "XDG_RUNTIME_DIR"])
def test_runtime_dir_must_be_absolute(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 'here'"):
        _ = Environment({name: "here"}).runtime_dir


def test_a_group_is_one_machine() -> None:
    place = Environment(TORCHRUN).torchrun()
    assert (place.rank, place.tp) == (1, 4)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", place.name)
    assert place.name.startswith("torchrun-job_7_a-")


def test_all_ranks_of_a_machine_agree_on_the_name() -> None:
    names = {
        Environment({**TORCHRUN, "RANK": str(4 + local), "LOCAL_RANK": str(local)}).torchrun().name
        for local in range(4)
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"TORCHELASTIC_RESTART_COUNT": "1"},
        {"MASTER_PORT": "29501"},
        {"MASTER_ADDR": "10.0.0.2"},
        {"TORCHELASTIC_RUN_ID": "job 7_a"},
        {"RANK": "1"},  # the other machine's group, or another agent on this one
    ],
)
def test_another_run_has_another_name(change: dict[str, str]) -> None:
    assert Environment({**TORCHRUN, **change}).torchrun().name != Environment(TORCHRUN).torchrun().name


def test_run_id_and_restart_count_may_be_absent() -> None:
    plain = {name: value for name, value in TORCHRUN.items() if "ELASTIC" not in name}
    assert Environment(plain).torchrun().name.startswith("torchrun-none-")


def test_missing_variables_are_all_named() -> None:
    with pytest.raises(ConfigError, match="not set: LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_PORT.*torchrun"):
        Environment({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": ""}).torchrun()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "x"}, "RANK is 'x'"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1'"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4: LOCAL_RANK < LOCAL_WORLD_SIZE"),
        ({"RANK": "8"}, "RANK=8 and WORLD_SIZE=8"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=2"),
        ({"RANK": "0"}, "LOCAL_RANK=1 and RANK=0"),
        ({"RANK": "7"}, "RANK=7 and LOCAL_RANK=1 .* 6 to 9 .*LOCAL_WORLD_SIZE=4.* WORLD_SIZE=8"),
        ({"TORCHELASTIC_RESTART_COUNT": "one"}, "TORCHELASTIC_RESTART_COUNT is 'one'"),
    ],
)
def test_inconsistent_variables_are_named_with_their_values(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Environment({**TORCHRUN, **change}).torchrun()


def test_read_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERCAST_RUNTIME_DIR", "/first")
    environment = Environment.read()
    monkeypatch.setenv("LAYERCAST_RUNTIME_DIR", "/second")
    assert environment.runtime_dir == Path("/first")


def test_no_other_file_reads_the_environment() -> None:
    package = Path(layercast.__file__).parent
    readers = [path.name for path in package.rglob("*.py") if re.search(r"os\.(environ|getenv)", path.read_text())]
    assert readers == ["config.py"]
