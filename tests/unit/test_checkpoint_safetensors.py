"""One file: cuts, lies in the header, and agreement with the format's reference implementation."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from ckpt_tools import Tensor, write_raw, write_safetensors
from hypothesis import event, given, settings
from hypothesis import strategies as st

from layercast.checkpoint.safetensors_file import HEADER_CAP, SafetensorsFile
from layercast.checkpoint.safetensors_writer import TensorSpec
from layercast.checkpoint.safetensors_writer import write_safetensors as write_ours
from layercast.errors import CheckpointError


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    assert str(path) in caught.value.message
    return caught.value


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    tensors = {"a": Tensor("F32", (64, 64), os.urandom(16384)), "b": Tensor("U8", (3,), b"xyz")}
    write_safetensors(path, tensors)
    return path


def test_reads_without_copying(good: Path) -> None:
    file = SafetensorsFile(good)
    assert file.tensors["a"][:2] == ("F32", (64, 64))
    view = file.bytes_of("b")
    assert bytes(view) == b"xyz" and not view.flags.writeable
    assert view.ctypes.data == file.address + file.tensors["b"].start


CUTS: dict[str, tuple[Callable[[int], int], str]] = {
    "by one byte": (lambda size: size - 1, "file_length"),
    "by a page": (lambda size: size - 4096, "file_length"),
    "by half": (lambda size: size // 2, "file_length"),
    "inside the header": (lambda size: 40, "header_truncated"),
    "inside the header's length": (lambda size: 5, "file_too_short"),
}


@pytest.mark.parametrize("name", CUTS)
def test_case_21_truncated_file(good: Path, name: str) -> None:
    (left, reason), size = CUTS[name], good.stat().st_size
    keep = left(size)
    os.truncate(good, keep)
    error = refused(good)
    assert error.reason == reason
    assert f"{keep} bytes" in error.message
    if reason == "file_length":
        assert f"declared length {size} bytes, actual length {keep} bytes" in error.message
    assert error.hint


def test_case_21_longer_than_declared(good: Path) -> None:
    with good.open("ab") as file:
        file.write(b"\0")
    assert refused(good).reason == "file_length"


def test_case_21_empty_and_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert refused(tmp_path / "empty").reason == "file_too_short"
    os.mkfifo(tmp_path / "fifo")
    assert refused(tmp_path / "fifo").reason == "not_a_file"
    assert refused(tmp_path / "none").reason == "unreadable"


def test_case_22_header_length_is_capped_without_allocating(tmp_path: Path) -> None:
    for length in (2**64 - 1, 2**63, HEADER_CAP + 1):
        path = write_raw(tmp_path / "x.safetensors", b"{}", length=length)
        tracemalloc.start()
        error = refused(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert error.reason == "header_too_large"
        assert str(length) in error.message and str(HEADER_CAP) in error.message
        assert peak < 1 << 20
    path = write_raw(tmp_path / "x.safetensors", b"{}", length=HEADER_CAP)
    assert refused(path).reason == "header_truncated"


def test_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "Git LFS" in refused(path).hint


HOSTILE: dict[str, tuple[Any, int, str]] = {
    "overlap": ({"a": entry([4], [0, 16]), "b": entry([4], [8, 24])}, 24, "overlap"),
    "same place": ({"a": entry([4], [0, 16]), "b": entry([4], [0, 16])}, 16, "overlap"),
    "hole": ({"a": entry([4], [0, 16]), "b": entry([4], [20, 36])}, 36, "hole"),
    "hole at the start": ({"a": entry([4], [4, 20])}, 20, "hole"),
    "reversed": ({"a": entry([4], [16, 0])}, 16, "offsets_reversed"),
    "negative": ({"a": entry([4], [-16, 0])}, 16, "offsets"),
    "three offsets": ({"a": entry([4], [0, 16, 16])}, 16, "offsets"),
    "fractional offsets": ({"a": entry([4], [0, 16.0])}, 16, "offsets"),
    "true as an offset": ({"a": entry([], [False, True], "U8")}, 1, "offsets"),
    "span": ({"a": entry([5], [0, 16])}, 16, "span"),
    "span off by a dtype": ({"a": entry([4], [0, 16], "F64")}, 16, "span"),
    "negative shape": ({"a": entry([-2, -2], [0, 16])}, 16, "shape"),
    "shape no list": ({"a": entry(4, [0, 16])}, 16, "shape"),
    "shape wraps to 4": ({"a": entry([2**32, 2**32, 4], [0, 16])}, 16, "shape_overflow"),
    "shape wraps in bytes": ({"a": entry([2**62 + 4], [0, 16])}, 16, "shape_overflow"),
    "dtype": ({"a": entry([4], [0, 16], "F33")}, 16, "dtype"),
    "dtype no text": ({"a": entry([4], [0, 16], ["F32"])}, 16, "dtype"),
    "beyond the data": ({"a": entry([8], [0, 32])}, 16, "file_length"),
    "offsets near 2^64": ({"a": entry([3], [2**64 - 13, 2**64 - 1])}, 16, "hole"),
    "offset of 2^64": ({"a": entry([4], [2**64 - 16, 2**64])}, 16, "offsets"),
    "2^64 beside 0": ({"a": entry([2**64, 0], [0, 0])}, 0, "shape"),
    "overflow before 0": ({"a": entry([2**40, 2**40, 0], [0, 0])}, 0, "shape_overflow"),
    "entry no object": ({"a": [1]}, 0, "tensor_entry"),
    "entry lacks dtype": ({"a": {"shape": [4], "data_offsets": [0, 16]}}, 16, "tensor_entry"),
    "metadata": ({"__metadata__": {"a": 1}}, 0, "metadata"),
    "not an object": ([1], 0, "json"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_case_22_hostile_header(tmp_path: Path, name: str) -> None:
    header, size, reason = HOSTILE[name]
    path = write_raw(tmp_path / "x.safetensors", json.dumps(header).encode(), b"\0" * size)
    assert refused(path).reason == reason


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'{"a":', "json"),
        (b"\xff\xfe{}", "json"),
        (b'{"a":"\xff"}', "json"),
        (b" {}", "json"),
        (b"", "json"),
        (b'{"a":' + b"[" * 100_000, "json"),
        (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,1]}}', "json"),
        (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', "json"),
        (b'{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', "json_duplicate"),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}', "json_duplicate"),
    ],
)
def test_case_22_header_is_no_json(tmp_path: Path, header: bytes, reason: str) -> None:
    assert refused(write_raw(tmp_path / "x.safetensors", header, b"\0")).reason == reason


def test_case_22_reasons_differ() -> None:
    kinds = {
        "overlap",
        "hole",
        "reversed",
        "negative",
        "span",
        "shape wraps to 4",
        "dtype",
        "beyond the data",
    }
    assert len({HOSTILE[kind][2] for kind in kinds}) == len(kinds)


def test_empty_tensors_and_empty_files_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_raw(path, json.dumps({"a": entry([0, 9], [0, 0]), "b": entry([], [0, 4])}).encode(), b"\0" * 4)
    assert set(SafetensorsFile(path).tensors) == {"a", "b"}
    write_raw(path, b"{}   ")
    assert SafetensorsFile(path).tensors == {}


@st.composite
def nearly_valid(draw: st.DrawFn) -> tuple[bytes, int]:
    """A header that is right but for at most one number and three bytes, and the length of its data."""
    header, position = {}, 0
    for name in draw(st.permutations("abc")):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        end = position + int(np.prod(shape))
        header[name] = entry(shape, [position, end], "U8")
        position = end
    if draw(st.booleans()):
        broken = header[draw(st.sampled_from("abc"))]
        numbers = broken[draw(st.sampled_from(["shape", "data_offsets"]))]
        if numbers:
            numbers[draw(st.integers(0, len(numbers) - 1))] += draw(st.sampled_from([-1, 1, 2**63, 2**64]))
    raw = bytearray(json.dumps(header).encode())
    if draw(st.booleans()):
        place, noise = draw(st.integers(0, len(raw))), draw(st.binary(max_size=3))
        raw[place : place + len(noise)] = noise
    return bytes(raw), max(0, position + draw(st.sampled_from([0, 0, 0, 1, -1])))


@settings(max_examples=200, deadline=None)
@given(file=nearly_valid())
def test_nothing_is_accepted_that_the_reference_refuses(
    tmp_path_factory: pytest.TempPathFactory, file: tuple[bytes, int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    write_raw(path, file[0], bytes(file[1]))
    try:
        seen = SafetensorsFile(path)
    except CheckpointError:
        event("refused")
        return
    event("accepted")
    assert {name for name, _ in safetensors.deserialize(path.read_bytes())} == set(seen.tensors)


def test_written_files_are_read_by_the_reference(tmp_path: Path) -> None:
    path, numbers = tmp_path / "x.safetensors", np.arange(12, dtype=np.float32).reshape(3, 4)
    specs = [
        TensorSpec("b", "F8_E4M3", (5,), lambda: np.arange(5, dtype=np.uint8)),
        TensorSpec("a", "F32", (3, 4), lambda: numbers),
    ]
    length = write_ours(path, specs, metadata={"format": "pt"})
    first = path.read_bytes()
    assert length == len(first) == path.stat().st_size
    assert (8 + struct.unpack("<Q", first[:8])[0]) % 64 == 0
    seen = dict(safetensors.deserialize(first))
    assert bytes(seen["a"]["data"]) == numbers.tobytes() and seen["a"]["shape"] == [3, 4]
    assert seen["b"]["dtype"] == "F8_E4M3" and bytes(seen["b"]["data"]) == bytes(range(5))
    write_ours(path, specs, metadata={"format": "pt"})
    assert path.read_bytes() == first
    assert SafetensorsFile(path).bytes_of("a").tobytes() == numbers.tobytes()


def test_writer_refuses_bytes_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="takes 16 bytes, 3 were given"):
        write_ours(tmp_path / "x", [TensorSpec("a", "F32", (4,), lambda: np.zeros(3, np.uint8))])
    assert not (tmp_path / "x").exists()
