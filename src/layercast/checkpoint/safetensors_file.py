"""One .safetensors file, mapped read-only and checked in full when it is opened.

The published format (https://github.com/huggingface/safetensors#format): an unsigned little-endian 64-bit
header length N, N bytes of JSON, then the data. The JSON maps a tensor's name to dtype, shape and
data_offsets [begin, end) relative to the data; the tensors cover the data without overlap or hole.
`__metadata__` maps text to text.

Reasons of CheckpointError raised here, one per kind of fault: unreadable, not_a_file, file_too_short,
header_too_large, header_truncated, json, json_duplicate, json_not_object, metadata, tensor_entry, dtype,
shape, shape_overflow, offsets, offsets_reversed, span, overlap, hole, file_length.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.strict_json import parse_object
from layercast.errors import CheckpointError

HEADER_CAP = 100_000_000
"""Largest header in bytes that is parsed, the same limit as the reference implementation's."""

DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("F4", "F4_E2M1"), 4),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
        **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
        **dict.fromkeys(("U32", "I32", "F32"), 32),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    }
)
"""Bits per element of the dtypes of the format."""


class TensorInfo(NamedTuple):
    """Where a tensor lies: dtype as in the header, shape, first byte and end in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A mapped file. The mapping lasts as long as this object or an array from `bytes_of` does.

    Attributes: `path`, `tensors` (name -> TensorInfo), `nbytes` (length of the file), `address` (virtual
    address of the file's first byte). Raises CheckpointError (reasons above); nothing is copied but the
    header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map, self.nbytes = _map_file(path)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self.address = int(self._bytes.ctypes.data)
        header_end = _header_end(path, self._map, self.nbytes)
        header = parse_object(self._map[8:header_end], f"{path}: header")
        self.tensors = _parse_tensors(path, header, header_end)
        _check_cover(path, self.tensors, header_end, self.nbytes)

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of the mapping of shape [span]."""
        info = self.tensors[name]
        return self._bytes[info.start : info.end]

    def check_unchanged(self) -> None:
        """Raise CheckpointError (reason "file_changed") where the file's length is not what was mapped."""
        now = self._map.size()
        if now != self.nbytes:
            raise CheckpointError(
                f"{self.path} had {self.nbytes} bytes when it was opened and has {now} now",
                reason="file_changed",
                hint="open the checkpoint again; write new files beside old ones and rename them",
            )


def _map_file(path: Path) -> tuple[mmap.mmap, int]:
    try:
        # a fifo would block in open, a directory has no length
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path} is not a regular file", reason="not_a_file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise CheckpointError(
                    f"{path} has {size} bytes, a safetensors file has at least 8",
                    reason="file_too_short",
                    hint="the file was cut; fetch it again",
                )
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), size
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", reason="unreadable") from error


def _header_end(path: Path, data: mmap.mmap, size: int) -> int:
    """Position of the first data byte; nothing of the header's length is allocated before it is checked."""
    (length,) = struct.unpack("<Q", data[:8])
    if length > HEADER_CAP:
        pointer = data[:8] == b"version "
        raise CheckpointError(
            f"{path}: the header claims {length} bytes, the cap is {HEADER_CAP} (the file has {size})",
            reason="header_too_large",
            hint="this is a Git LFS pointer, fetch the file itself" if pointer else "not a safetensors file?",
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{path}: the header ends at byte {8 + length} as declared, the file has {size} bytes",
            reason="header_truncated",
            hint="the file was cut inside its header; fetch it again",
        )
    if data[8:9] != b"{":
        raise CheckpointError(f"{path}: the header does not begin with '{{'", reason="json")
    return 8 + int(length)


def _parse_tensors(path: Path, header: dict[str, Any], data_start: int) -> dict[str, TensorInfo]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map text to text", reason="metadata")
    return {name: _parse_tensor(f"{path}: tensor {name}", entry, data_start) for name, entry in header.items()}


def _parse_tensor(what: str, entry: Any, data_start: int) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        seen = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise CheckpointError(f"{what}: expected dtype, shape and data_offsets, seen {seen}", reason="tensor_entry")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise CheckpointError(f"{what}: dtype {dtype!r} is not one of the format's", reason="dtype")
    if not _are_sizes(shape):
        raise CheckpointError(f"{what}: shape {shape!r} is not a list of whole numbers below 2^64", reason="shape")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(
            f"{what}: data_offsets {offsets!r} are not two whole numbers below 2^64", reason="offsets"
        )
    start, end = offsets
    if start > end:
        raise CheckpointError(f"{what}: data_offsets {offsets} run backwards", reason="offsets_reversed")
    wanted = _elements(what, shape) * bits
    if (end - start) * 8 != wanted:
        raise CheckpointError(
            f"{what}: {dtype} {shape} takes {-(-wanted // 8)} bytes, data_offsets span {end - start}",
            reason="span",
        )
    return TensorInfo(dtype, tuple(shape), data_start + start, data_start + end)


def _are_sizes(value: Any) -> bool:
    # `type` and not `isinstance`: true and false are no sizes
    return type(value) is list and all(type(item) is int and 0 <= item < 1 << 64 for item in value)


def _elements(what: str, shape: list[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
        if elements >= 1 << 60:  # also keeps hostile shapes from costing time
            raise CheckpointError(f"{what}: its shape holds over 2^60 elements", reason="shape_overflow")
    return elements


def _check_cover(path: Path, tensors: Mapping[str, TensorInfo], data_start: int, size: int) -> None:
    """The tensors in file order touch each other, and the last one ends with the file."""
    position, before = data_start, "the header"
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start < position:
            raise CheckpointError(
                f"{path}: tensors {before} and {name} overlap: {name} begins at byte {info.start} of the "
                f"file, {before} ends at {position}",
                reason="overlap",
            )
        if info.start > position:
            raise CheckpointError(
                f"{path}: bytes {position} to {info.start} of the file belong to no tensor "
                f"(between {before} and {name})",
                reason="hole",
            )
        position, before = info.end, name
    if position != size:
        raise CheckpointError(
            f"{path}: declared length {position} bytes, actual length {size} bytes ({size - position:+d})",
            reason="file_length",
            hint="the file was cut or something was appended; fetch it again",
        )
