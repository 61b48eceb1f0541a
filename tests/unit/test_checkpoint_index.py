"""Several files: which one counts, what is missing, and names that lead elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ckpt_tools import Tensor, tiny_model, write_index, write_safetensors

from layercast.checkpoint import Checkpoint
from layercast.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def refused(path: Path, reason: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(path)
    assert caught.value.reason == reason, caught.value
    return caught.value


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_one_file_or_several_with_or_without_index(tmp_path: Path, shards: int, index: bool) -> None:
    path = tiny_model().save(tmp_path / "m", shards=shards, index=index)
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.layers == (1, 2)
        assert checkpoint.describe()["files"] == shards


def test_a_file_can_be_opened_directly(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path)
    assert Checkpoint.open(path / "model.safetensors").num_experts == 2


def test_case_20_index_names_files_that_are_not_there(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path, shards=4)
    for number in (1, 2):
        (path / f"part{number}.safetensors").unlink()
    error = refused(path, "missing_shard")
    assert "(2): " in error.message
    assert "part1.safetensors, part2.safetensors" in error.message


def test_case_20_index_names_the_wrong_file(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path, shards=2)
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    name = "model.layers.2.mlp.experts.1.up_proj.weight"
    weight_map[name] = "part1.safetensors" if weight_map[name] == "part0.safetensors" else "part0.safetensors"
    write_index(path, weight_map)
    error = refused(path, "missing_tensor_in_shard")
    assert "(1): " in error.message and f"{name} (in {weight_map[name]})" in error.message


def test_case_20_numbered_files_without_index(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path, shards=3, index=False)
    for number, new in enumerate((1, 2, 4)):
        (path / f"part{number}.safetensors").rename(path / f"model-0000{new}-of-00004.safetensors")
    assert "model-00003-of-00004.safetensors" in refused(path, "missing_shard").message


def test_a_stale_copy_in_another_shard_is_ignored(tmp_path: Path) -> None:
    model = tiny_model()
    path = model.save(tmp_path, shards=2)
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    stale = Tensor("F8_E4M3", (256, 256), b"\x11" * 65536)
    write_safetensors(path / "other.safetensors", {name: stale, "extra": stale})
    write_index(path, weight_map | {"extra": "other.safetensors"})
    seen = Checkpoint.open(path).reference(1, 0, 0, 1)["w13"].tobytes()
    assert seen[:65536] == model.tensors[name].data


def test_a_tensor_in_two_files_without_index_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    path = model.save(tmp_path, shards=2, index=False)
    name = "model.layers.1.mlp.experts.0.gate_proj.weight"
    write_safetensors(path / "zz.safetensors", {name: model.tensors[name]})
    error = refused(path, "duplicate_tensor")
    assert name in error.message and "zz.safetensors" in error.message


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "a/../../x", "", "a\\..\\x", "a\0b"])
def test_shard_names_cannot_leave_the_directory(tmp_path: Path, shard: str) -> None:
    path = tiny_model().save(tmp_path / "m")
    os.link(path / "model.safetensors", tmp_path / "x.safetensors")
    write_index(path, {"model.embed_tokens.weight": shard})
    assert repr(shard) in refused(path, "shard_name").message


@pytest.mark.parametrize("content", [{}, [], {"a": 1}, None])
def test_weight_map_must_map_names_to_names(tmp_path: Path, content: object) -> None:
    path = tiny_model().save(tmp_path)
    (path / INDEX).write_text(json.dumps({"weight_map": content}))
    refused(path, "index_entry")


def test_an_index_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path)
    (path / INDEX).write_text('{"weight_map": {"a": "model.safetensors", "a": "other.safetensors"}}')
    refused(path, "json_duplicate")


def test_case_21_truncated_shard(tmp_path: Path) -> None:
    path = tiny_model().save(tmp_path, shards=3)
    shard = path / "part1.safetensors"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    error = refused(path, "file_length")
    assert "part1.safetensors" in error.message
    assert f"declared length {size} bytes, actual length {size - 1} bytes" in error.message


def test_nothing_to_open(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "not_found")
    refused(tmp_path, "no_weights")
    (tmp_path / "weights.bin").write_bytes(b"")
    refused(tmp_path / "weights.bin", "not_found")
    tiny_model().save(tmp_path)
    (tmp_path / "config.json").unlink()
    refused(tmp_path, "missing_config")
