"""What `demo` and `stream` share: the ranks' processes, progress, and the report."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from layercast import launch
from layercast.checkpoint import Checkpoint
from layercast.devices import open_device
from layercast.errors import ConfigError
from layercast.group import Group
from layercast.sources import CheckpointSource, HostViews, LayerSource, SyntheticSource
from layercast.stream import stream_layers
from layercast.transport import DEFAULT_PIECE_BYTES, DEFAULT_SLOTS, Transport

#: `(source, layer, rank, tp, views)` -> experts whose bytes are wrong.
Verifier: TypeAlias = Callable[[LayerSource, int, int, int, HostViews], list[int]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ranks do; travels to their processes."""

    tp: int
    layers: tuple[int, ...]
    checkpoint: Path | None = None
    synthetic: str | None = None
    device: str = "host"
    slots: int = DEFAULT_SLOTS
    piece_bytes: int = DEFAULT_PIECE_BYTES
    verifier: Verifier | None = None

    def open(self) -> LayerSource:
        """The source, opened in this process."""
        if self.synthetic is not None:
            return SyntheticSource(self.synthetic)
        if self.checkpoint is None:
            raise ConfigError("name a checkpoint, or a shape with --synthetic")
        return CheckpointSource(Checkpoint.open(self.checkpoint))


def compare_with_source(source: LayerSource, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
    """The usual verifier: the source read again."""
    return source.wrong_experts(layer, rank, tp, views)


def parse_layers(text: str | None, there: Sequence[int]) -> tuple[int, ...]:
    """`N`: the first N of the MoE layers; `A:B`: layers A to B, both included; None: all. Raises ConfigError."""
    if text is None:
        return tuple(there)
    first, colon, last = text.partition(":")
    span = f"the MoE layers are {there[0]} to {there[-1]}"
    if not first.isdecimal() or (colon and not last.isdecimal()):
        raise ConfigError(f"--layers {text}: expected a count (2) or a range (3:44)", hint=span)
    if not colon:
        if not 1 <= int(first) <= len(there):
            raise ConfigError(f"--layers {text}: expected 1 to {len(there)} layers", hint=span)
        return tuple(there[: int(first)])
    chosen = tuple(layer for layer in there if int(first) <= layer <= int(last))
    if int(first) > int(last) or not chosen:
        raise ConfigError(f"--layers {text}: no MoE layer lies in it", hint=span)
    return chosen


def run_rank(group: Group, plan: Plan, progress: Connection | None) -> list[dict[str, Any]]:
    """One rank's process: streams the plan's layers; a dictionary of figures per layer."""
    source = plan.open()
    out: list[dict[str, Any]] = []
    with Transport(
        group,
        source.layout(plan.tp),
        num_experts=source.num_experts,
        device=plan.device,
        slots=plan.slots,
        piece_bytes=plan.piece_bytes,
    ) as transport:
        for layer in plan.layers:
            if plan.verifier is not None:
                group.barrier(f"layer {layer}")  # the time of a layer must not hold the check of the last one
            started = time.monotonic()
            [figures] = stream_layers(transport, source, [layer])
            row = figures.as_dict()
            row["wall_ms"] = (time.monotonic() - started) * 1e3
            if plan.verifier is not None:
                row["wrong"] = plan.verifier(source, layer, group.rank, plan.tp, transport.host_views())
            out.append(row)
            if progress is not None and group.rank == 0:
                progress.send(figures.bytes * plan.tp)
    return out


def run(plan: Plan, console: Console) -> dict[str, Any]:
    """Runs the ranks behind a progress bar; returns the report that `--json` prints."""
    open_device(plan.device)
    source = plan.open()
    layout = source.layout(plan.tp)
    reader, writer = multiprocessing.Pipe(duplex=False)
    started = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} layers"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("streaming", total=len(plan.layers), speed="")

        def follow() -> None:
            moved = 0
            while (nbytes := reader.recv()) is not None:
                moved += nbytes
                speed = moved / (time.monotonic() - started) / 1e9
                progress.update(task, advance=1, speed=f"{speed:.1f} GB/s")

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            ranks: list[list[dict[str, Any]]] = launch(run_rank, plan.tp, args=(plan, writer))
        finally:
            writer.send(None)
            follower.join()
            reader.close()
            writer.close()
    return _report(plan, source, layout.nbytes, ranks, time.monotonic() - started)


def _report(
    plan: Plan, source: LayerSource, share: int, ranks: list[list[dict[str, Any]]], seconds: float
) -> dict[str, Any]:
    per_layer = []
    for rows in zip(*ranks, strict=True):
        first = rows[0]
        nbytes = sum(row["bytes"] for row in rows)
        wall_ms = max(row["wall_ms"] for row in rows)
        per_layer.append(
            {
                "layer": first["layer"],
                "experts": first["experts"],
                "bytes": nbytes,
                "writer_ms": first["writer_ms"],
                "slot_wait_ms": first["slot_wait_ms"],
                "copy_ms": max(row["h2d_ms"] for row in rows),
                "total_ms": first["total_ms"],
                "gbps": nbytes / max(wall_ms, 1e-6) / 1e6,
                "wrong": {str(r): row["wrong"] for r, row in enumerate(rows) if row.get("wrong")},
            }
        )
    total = sum(row["bytes"] for row in per_layer)
    expected = sum(source.experts(layer) for layer in plan.layers) * share * plan.tp
    verified = None
    if plan.verifier is not None:
        verified = total == expected and not any(row["wrong"] for row in per_layer)
    moving = sum(row["bytes"] / max(row["gbps"], 1e-9) / 1e9 for row in per_layer)
    return {
        "source": source.name,
        "device": plan.device,
        "tp": plan.tp,
        "layers": len(per_layer),
        "experts": sum(row["experts"] for row in per_layer),
        "bytes": total,
        "verified": verified,
        "seconds": round(seconds, 3),
        "gbps": round(total / max(moving, 1e-9) / 1e9, 3),
        "slots": plan.slots,
        "piece_bytes": plan.piece_bytes,
        "per_layer": per_layer,
    }


def show(report: dict[str, Any], console: Console) -> None:
    """The report as a table and a summary."""
    title = f"{report['source']}: {report['tp']} ranks, device {report['device']}, times in ms"
    table = Table(title=title, title_justify="left")
    for name in ("layer", "experts", "MB", "writer", "slot wait", "copy", "total", "GB/s"):
        table.add_column(name, justify="right")
    for row in report["per_layer"]:
        times = (f"{row[name]:.1f}" for name in ("writer_ms", "slot_wait_ms", "copy_ms", "total_ms"))
        mb, speed = f"{row['bytes'] / 1e6:.1f}", f"{row['gbps']:.2f}"
        table.add_row(str(row["layer"]), str(row["experts"]), mb, *times, speed)
    console.print(table)
    console.print(
        f"{report['layers']} layers, {report['experts']} experts, {report['bytes'] / 1e9:.3f} GB to"
        f" {report['tp']} ranks at {report['gbps']:.2f} GB/s; {report['seconds']:.1f} s with start-up",
        soft_wrap=True,
    )
    if report["verified"] is None:
        console.print("not verified (ask with --verify)")
    elif report["verified"]:
        console.print("verified: every byte on every rank is the source's")
    else:
        for row in report["per_layer"]:
            for rank, wrong in row["wrong"].items():
                console.print(f"NOT verified: layer {row['layer']}, rank {rank}: experts {wrong[:8]} differ")


def finish(report: dict[str, Any], as_json: bool) -> int:
    """Prints the report on stdout; returns the exit code."""
    if as_json:
        print(json.dumps(report))
    else:
        show(report, Console())
    return 1 if report["verified"] is False else 0
