"""Writes a checkpoint's directory: shards, their index, config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from layercast.checkpoint.config import CONFIG_NAME
from layercast.checkpoint.index import INDEX_NAME
from layercast.checkpoint.safetensors_writer import TensorSpec, write_safetensors
from layercast.errors import CheckpointError

#: `progress(bytes written, bytes in all)`.
Progress: TypeAlias = Callable[[int, int], object]

_SHARD_BYTES = 2 << 30


def shards_for(tensors: Sequence[TensorSpec]) -> int:
    """How many shards of about 2 GB these tensors take."""
    return min(len(tensors), 1 + sum(tensor.nbytes for tensor in tensors) // _SHARD_BYTES)


def write_checkpoint(
    path: Path | str,
    tensors: Sequence[TensorSpec],
    config: dict[str, Any],
    shards: int,
    progress: Progress | None = None,
) -> Path:
    """Write `tensors` in their order into the directory `path`, which must be new or empty, and return it.

    Raises CheckpointError (reason "not_empty").
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise CheckpointError(
            f"{directory} is not empty",
            reason="not_empty",
            hint="give a new directory, nothing is overwritten",
        )
    total, done = sum(tensor.nbytes for tensor in tensors), 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    weight_map: dict[str, str] = {}
    for number, part in enumerate(_split(tensors, shards, total), 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        write_safetensors(directory / name, part, metadata={"format": "pt"}, progress=count)
        weight_map |= {tensor.name: name for tensor in part}
    _write_json(directory / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    _write_json(directory / CONFIG_NAME, config)
    return directory


def _split(tensors: Sequence[TensorSpec], shards: int, total: int) -> list[list[TensorSpec]]:
    """Cut the list into parts of about equal bytes, none of them empty."""
    parts: list[list[TensorSpec]] = [[]]
    done = 0
    for left, tensor in zip(range(len(tensors), 0, -1), tensors, strict=True):
        wanted = done * shards >= total * len(parts) or left <= shards - len(parts)
        if parts[-1] and wanted and len(parts) < shards:
            parts.append([])
        parts[-1].append(tensor)
        done += tensor.nbytes
    return parts


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
