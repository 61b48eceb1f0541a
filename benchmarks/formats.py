"""The checkpoint writer in every format, against the memory writer with the same bytes, in one run.

Both with one thread, in turns. `slots`: what rank 0 does in a layer, piece after piece for all ranks into four slots
each, which the caches hold. `arena`: one rank's share after the other into memory, as each rank loads its own. GB/s
of processor time are medians, `ratio` the median over turns of checkpoint to memory. Checkpoints are synthetic, in the
page cache.

    python benchmarks/formats.py [--json] [--only llama-4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from layercast import Checkpoint, _native, machine
from layercast.checkpoint import write_synthetic_checkpoint
from layercast.writers import Writer, checkpoint_writer, memory_writer

ROUNDS = 11
SLOTS = 4
SIZES = {"layers": 1, "experts": 24, "hidden": 2048, "vocab": 64}
CASES = [
    ("qwen3-moe", "fp8_block", 1024, (1, 4)),
    ("qwen3-moe", "fp8_block", 768, (4,)),  # 192 rows: off the block grid
    ("qwen3-moe", "fp8_channel", 1024, (1, 4)),
    ("qwen3-moe", "bf16", 1024, (1, 4)),
    ("qwen3-moe", "fp16", 1024, (4,)),
    ("minimax-m2", "mxfp8", 1024, (1, 4)),
    ("minimax-m2", "mxfp8", 960, (4,)),  # 240 columns: off the grid of groups
    ("kimi-k2", "mxfp4", 1024, (1, 4)),
    ("kimi-k2", "int4", 1024, (1, 4)),
    ("kimi-k2", "int4", 960, (4,)),
    ("gpt-oss", "mxfp4", 1024, (1, 4)),  # every second row
    ("gpt-oss", "mxfp4", 960, (4,)),
    ("gpt-oss", "bf16", 1024, (1, 4)),  # on its side, every second column
    ("llama-4", "bf16", 1024, (1, 4)),  # on its side
]


def measure(only: str | None) -> Iterator[dict[str, Any]]:
    """One row per case and T."""
    for like, form, intermediate, ranks in CASES:
        if only is not None and only != like:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "c"
            write_synthetic_checkpoint(path, like=like, form=form, intermediate=intermediate, **SIZES)
            checkpoint = Checkpoint.open(path, off_grid="finer")
            for tp in ranks:
                yield {"like": like, "format": form, "I": intermediate, "T": tp} | _compare(checkpoint, tp)


def _compare(checkpoint: Checkpoint, tp: int) -> dict[str, Any]:
    layout, layer = checkpoint.layout(tp), checkpoint.layers[0]
    experts, kinds = checkpoint.experts(layer), list(layout.sizes)
    started = time.perf_counter()
    ours = checkpoint_writer(checkpoint, layer, tp)
    made = time.perf_counter() - started
    source = np.ones(experts * tp * sum(kinds), np.uint8)
    theirs = memory_writer(source, kinds, tp, experts)
    piece = machine.default_piece_bytes(tp, SLOTS)
    slots = np.zeros(SLOTS * tp * piece, np.uint8)
    memory = [[np.zeros((experts, nbytes), np.uint8) for nbytes in kinds] for _ in range(tp)]
    addresses = [[kind.ctypes.data for kind in kinds] for kinds in memory]

    def fill_slots(writer: Writer) -> None:
        _native.fill_slots(writer, layer, tp, experts, kinds, piece, slots.ctypes.data, SLOTS)

    def fill_arenas(writer: Writer) -> None:
        for rank in range(tp):
            _native.fill_arena(writer, layer, rank, tp, 0, experts, kinds, addresses[rank])

    row: dict[str, Any] = {}
    for path, fill in (("slots", fill_slots), ("arena", fill_arenas)):
        turns = [[_seconds(fill, writer) for writer in (ours, theirs)] for _ in range(ROUNDS + 1)][1:]
        speeds = [source.nbytes / statistics.median(times) / 1e9 for times in zip(*turns, strict=True)]
        row[f"{path}_gbps"] = round(speeds[0], 1)
        row[f"{path}_memory_gbps"] = round(speeds[1], 1)
        row[f"{path}_ratio"] = round(statistics.median(theirs / ours for ours, theirs in turns), 2)
    return row | {"prepare_ms": round(made * 1e3, 1)}


def _seconds(fill: Callable[[Writer], None], writer: Writer) -> float:
    started = time.thread_time()  # other work on the machine may interrupt it
    fill(writer)
    return time.thread_time() - started


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--only", help="one family")
    options = parser.parse_args()
    for row in measure(options.only):
        if options.json:
            print(json.dumps(row))
        else:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
