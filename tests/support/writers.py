"""The same bytes from every kind of writer: each is fed with what the pattern writer writes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from layercast import _native

from .rig import Rig

STYLES = ("pattern", "memory", "blocks", "views", "addresses", "function")
_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_void_p),
)


def pattern_source(seed: int, layer: int, tp: int, kinds: Sequence[int], experts: int) -> np.ndarray:
    """uint8 [expert][rank][kind bytes], made by streaming a pattern to a group of its own."""
    with Rig(tp, kinds, experts) as rig:
        rig.load_checked(1, layer, experts, _native.pattern_writer(seed))
        shares = [
            np.concatenate([d.array[: experts * k].reshape(experts, k) for d, k in zip(ds, kinds, strict=True)], axis=1)
            for ds in rig.destinations
        ]
        return np.ascontiguousarray(np.stack(shares, axis=1))


def make(style: str, source: np.ndarray, seed: int, layer: int, kinds: Sequence[int]) -> _native.Writer:
    """A writer of that style for `source` [expert][rank][bytes]."""
    experts, tp, _ = source.shape
    starts = np.cumsum([0, *kinds])
    address = source.ctypes.data
    if style == "pattern":
        return _native.pattern_writer(seed)
    if style == "memory":
        return _native.memory_writer(address, source.nbytes, experts, list(kinds), tp, source)
    if style == "blocks":
        return _block_writer(source, layer, kinds)
    if style == "views":

        def by_views(expert: int, views: tuple[tuple[np.ndarray, ...], ...]) -> None:
            for rank, of_rank in enumerate(views):
                for kind, view in enumerate(of_rank):
                    view[:] = source[expert, rank, starts[kind] : starts[kind + 1]]

        return _native.PythonWriter.views(by_views)
    if style == "addresses":

        def by_addresses(expert: int, *addresses: list[int]) -> None:
            for rank in range(tp):
                for kind, of_kind in enumerate(addresses):
                    share = source[expert, rank, starts[kind] : starts[kind + 1]]
                    ctypes.memmove(of_kind[rank], share.ctypes.data, share.size)

        return _native.PythonWriter.addresses(by_addresses)

    def by_function(user, layer_id, expert, ranks, kind_count, pointers):  # type: ignore[no-untyped-def]
        for rank in range(ranks):
            for kind in range(kind_count):
                share = source[expert, rank, starts[kind] : starts[kind + 1]]
                ctypes.memmove(pointers[rank * kind_count + kind], share.ctypes.data, share.size)
        return 0

    function = _FUNCTION(by_function)
    return _native.function_writer(ctypes.cast(function, ctypes.c_void_p).value or 0, 0, function)


def _block_writer(source: np.ndarray, layer: int, kinds: Sequence[int]) -> _native.Writer:
    """Each kind in up to two blocks, the second strided where the size allows: like a column slice."""
    experts, tp, share = source.shape
    blocks, index, keep = [], [0], [source]
    for expert in range(experts):
        for rank in range(tp):
            at = 0
            for size in kinds:
                piece = source[expert, rank, at : at + size]
                rows = 4 if size % 4 == 0 else 1
                wide = np.zeros((rows, size // rows + 3), dtype=np.uint8)
                wide[:, : size // rows] = piece.reshape(rows, -1)
                keep.append(wide)
                blocks.append((wide.ctypes.data, wide.shape[1], size // rows, rows, 0, 1))
                index.append(len(blocks))
                at += size
    table = np.array(blocks, dtype=np.uint64)
    return _native.block_writer(table, np.array(index, dtype=np.uint64), experts, tp, len(kinds), layer, keep)
