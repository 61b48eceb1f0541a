"""Who fills the slots: a Python callable, memory, a checkpoint, a C function, a synthetic pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from layercast import _native
from layercast.checkpoint import Checkpoint, Placement
from layercast.checkpoint.placement import PlacementKind
from layercast.errors import ConfigError

#: One rank's share of an expert as numpy uint8 arrays, one per kind, in the slot itself.
Views: TypeAlias = tuple[npt.NDArray[np.uint8], ...]
#: `writer(expert, views)` fills `views[rank][kind]`. The views are valid during the call only.
ExpertWriter: TypeAlias = Callable[[int, tuple[Views, ...]], object]
Writer: TypeAlias = _native.Writer


def memory_writer(source: npt.NDArray[Any], kind_bytes: Sequence[int], ranks: int, experts: int) -> Writer:
    """Experts from memory laid out [expert][rank][kind], contiguous; expert x comes from x % `experts`.

    `source`: a C-contiguous array of at least experts x ranks x sum(kind_bytes) bytes; kept alive by the writer.
    Raises ConfigError.
    """
    if not source.flags.c_contiguous:
        raise ConfigError("memory writer: expected a C-contiguous array", hint="numpy.ascontiguousarray makes one")
    return _native.memory_writer(source.ctypes.data, source.nbytes, experts, list(kind_bytes), ranks, source)


def checkpoint_writer(
    checkpoint: Checkpoint, layer: int, ranks: int, placement: PlacementKind | Placement = "tensor"
) -> Writer:
    """One layer's experts for `ranks` ranks, straight from the mapped files; runs without the GIL.

    With placement "expert" each rank gets whole experts: load it with that placement (see `Transport.join`).
    """
    cut = checkpoint.blocks(layer, ranks, placement=placement)
    table = cut.blocks.view(np.uint64).reshape(-1, 6)
    kinds = len(cut.layout.kinds)
    return _native.block_writer(table, cut.index, cut.experts, ranks, kinds, layer, cut)


def function_writer(function: int, user: int = 0, owner: object = None) -> Writer:
    """A C function `int f(void* user, int64 layer, size_t expert, size_t ranks, size_t kinds, void* const* p)`.

    `function`, `user`: addresses. `p` is [rank][kind]; a result other than 0 fails the layer. `owner` is kept alive.
    """
    return _native.function_writer(function, user, owner)


def pattern_writer(seed: int = 0) -> Writer:
    """Synthetic bytes that (seed, layer, expert, rank, kind) determine; `wrong_pattern` checks them."""
    return _native.pattern_writer(seed)


def as_writer(writer: Writer | ExpertWriter) -> Writer:
    """A native writer as it is, a Python callable wrapped. Raises ConfigError for anything else."""
    if isinstance(writer, _native.Writer):
        return writer
    if callable(writer):
        return _native.PythonWriter.views(writer)
    raise ConfigError(
        f"writer: expected a callable (expert, views) or a writer of layercast.writers, got {type(writer).__name__}"
    )
