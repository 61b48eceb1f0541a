"""Which file holds which tensor: one file, several, or several with model.safetensors.index.json.

Where there is an index it is the authority for every tensor: copies in other shards, and tensors it does
not list, are not seen.

Reasons of CheckpointError raised here: not_found, no_weights, index_entry, shard_name, missing_shard,
missing_tensor_in_shard, duplicate_tensor; and those of `safetensors_file`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.safetensors_file import SafetensorsFile, TensorInfo
from layercast.checkpoint.strict_json import read_object
from layercast.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_SHOWN = 5
_NUMBERED = re.compile(r"-(\d{5,6})-of-(\d{5,6})\.safetensors$")


class TensorIndex:
    """All tensors of a checkpoint. config.json is looked for in `directory`; `files` are mapped."""

    def __init__(self, directory: Path, holders: Mapping[str, SafetensorsFile]) -> None:
        self.directory = directory
        self._holders = holders
        self.files = tuple(dict.fromkeys(holders.values()))

    @classmethod
    def open(cls, path: Path) -> TensorIndex:
        """Map the files of `path`, a directory or one .safetensors file. CheckpointError, reasons above."""
        if path.is_dir():
            return cls(path, _open_directory(path))
        if not path.exists():
            raise CheckpointError(f"{path} does not exist", reason="not_found")
        if path.suffix != ".safetensors":
            raise CheckpointError(
                f"{path} is neither a directory nor a .safetensors file",
                reason="not_found",
                hint="give the checkpoint's directory",
            )
        return cls(path.parent, _merge([SafetensorsFile(path)]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)

    def find(self, name: str) -> TensorInfo | None:
        """dtype, shape and place of a tensor, or None."""
        holder = self._holders.get(name)
        return None if holder is None else holder.tensors[name]

    def file_of(self, name: str) -> SafetensorsFile:
        """The file that holds a tensor of the index."""
        return self._holders[name]

    def address_of(self, name: str) -> int:
        """Virtual address of the tensor's first byte in its file's mapping."""
        holder = self._holders[name]
        return holder.address + holder.tensors[name].start

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, a read-only view of shape [span]."""
        return self._holders[name].bytes_of(name)


def _open_directory(directory: Path) -> dict[str, SafetensorsFile]:
    index = directory / INDEX_NAME
    if index.exists():
        return _open_indexed(index)
    single = directory / SINGLE_NAME
    if single.exists():
        return _merge([SafetensorsFile(single)])
    paths = sorted(directory.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(
            f"{directory} holds no .safetensors file and no {INDEX_NAME}",
            reason="no_weights",
            hint="give the directory that holds config.json and the weights",
        )
    _check_numbering(directory, paths)
    return _merge([SafetensorsFile(path) for path in paths])


def _merge(files: list[SafetensorsFile]) -> dict[str, SafetensorsFile]:
    holders: dict[str, SafetensorsFile] = {}
    for file in files:
        for name in file.tensors:
            if name in holders:
                raise CheckpointError(
                    f"tensor {name} is in {holders[name].path.name} and in {file.path.name}, with no index",
                    reason="duplicate_tensor",
                    hint=f"add {INDEX_NAME}, or remove the files that are not part of the checkpoint",
                )
            holders[name] = file
    return holders


def _check_numbering(directory: Path, paths: list[Path]) -> None:
    """Names such as model-00001-of-00003.safetensors say how many files there are."""
    wanted: set[str] = set()
    for path in paths:
        if match := _NUMBERED.search(path.name):
            stem, width, total = path.name[: match.start()], len(match[1]), int(match[2])
            if total <= 100_000:
                numbers = range(1, total + 1)
                wanted |= {f"{stem}-{n:0{width}}-of-{match[2]}.safetensors" for n in numbers}
    _refuse_missing(directory, sorted(wanted - {path.name for path in paths}), "their names' count")


def _open_indexed(index: Path) -> dict[str, SafetensorsFile]:
    weight_map = _weight_map(index)
    shards = sorted(set(weight_map.values()))
    directory = index.parent
    _refuse_missing(directory, [name for name in shards if not (directory / name).exists()], INDEX_NAME)
    files = {name: SafetensorsFile(directory / name) for name in shards}
    holders = {tensor: files[shard] for tensor, shard in weight_map.items()}
    lost = [(tensor, file.path.name) for tensor, file in holders.items() if tensor not in file.tensors]
    if lost:
        shown = ", ".join(f"{tensor} (in {shard})" for tensor, shard in lost[:_SHOWN])
        raise CheckpointError(
            f"{index}: tensors that are not in the shard the index names ({len(lost)}): {shown}"
            f"{', ...' if len(lost) > _SHOWN else ''}",
            reason="missing_tensor_in_shard",
            hint="index and shards are of different versions; fetch both again",
        )
    return holders


def _refuse_missing(directory: Path, missing: list[str], source: str) -> None:
    if not missing:
        return
    shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
    raise CheckpointError(
        f"{directory}: shard files missing by {source} ({len(missing)}): {shown}",
        reason="missing_shard",
        hint="the download is incomplete; fetch the missing files",
    )


def _weight_map(index: Path) -> dict[str, str]:
    weight_map: Any = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing, empty or no object", reason="index_entry")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{index}: {tensor} maps to {shard!r}, not to a file's name", reason="index_entry")
    for shard in set(weight_map.values()):
        _check_shard_name(index, shard)
    return weight_map


def _check_shard_name(index: Path, shard: str) -> None:
    pure = PurePosixPath(shard)
    if not shard or pure.is_absolute() or ".." in pure.parts or "\\" in shard or "\0" in shard:
        raise CheckpointError(
            f"{index}: shard name {shard!r} leads out of the checkpoint's directory",
            reason="shard_name",
            hint="shards lie beside the index; do not use a checkpoint that says otherwise",
        )
