"""JSON as this package accepts it from disk: one object, no key twice, no NaN or Infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from layercast.errors import CheckpointError

FILE_CAP = 256 * 1024 * 1024
"""Bytes of a .json file beyond which it is not read: the largest published index is some 10 MB."""


class _DuplicateKey(ValueError):
    pass


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return found


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse `data`, which must be one JSON object. `what` names it in errors.

    Raises CheckpointError with reason "json" (not JSON), "json_duplicate" or "json_not_object".
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except _DuplicateKey as error:
        raise CheckpointError(
            f"{what} holds the key {error.args[0]!r} twice",
            reason="json_duplicate",
            hint="which of the two counts is undefined; write the file again",
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{what} is not valid JSON: {error}", reason="json", hint="the file is damaged; fetch it again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is a JSON {type(value).__name__}, expected an object", reason="json_not_object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a .json file that holds one object. CheckpointError as in `parse_object`, or "unreadable"."""
    try:
        size = path.stat().st_size
        if size > FILE_CAP:
            raise CheckpointError(f"{path} has {size} bytes, at most {FILE_CAP} are read", reason="json_too_large")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", reason="unreadable") from error
    return parse_object(data, str(path))
