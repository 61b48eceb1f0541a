"""Writes .safetensors files: the same input gives the same bytes, and a file appears whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.safetensors_file import DTYPE_BITS
from layercast.errors import CheckpointError

ALIGNMENT = 64
"""Data begins at a multiple of this many bytes; the format allows spaces behind the header's JSON."""


class TensorSpec(NamedTuple):
    """A tensor to write: name, dtype in the format's spelling, shape, and a function that makes its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def write_safetensors(
    path: Path,
    tensors: Sequence[TensorSpec],
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write `tensors` in their order and return the file's length in bytes.

    One tensor at a time is in memory. `progress` gets the bytes of each tensor written. Raises
    CheckpointError (reason "tensor_bytes") where `make` gives another number of bytes than dtype and shape
    say.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for tensor in tensors:
        offsets = [position, position + tensor.nbytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        position = offsets[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = np.ascontiguousarray(tensor.make())
            if data.nbytes != tensor.nbytes:
                raise CheckpointError(
                    f"tensor {tensor.name}: {tensor.dtype} {tensor.shape} takes {tensor.nbytes} bytes, "
                    f"{data.nbytes} were given",
                    reason="tensor_bytes",
                )
            file.write(data.data)
            if progress is not None:
                progress(data.nbytes)
    partial.replace(path)
    return 8 + len(text) + position
