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
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from layercast import launch
from layercast.arena import Arena
from layercast.checkpoint import Checkpoint
from layercast.checkpoint.placement import PlacementKind
from layercast.devices import check_device, open_device
from layercast.errors import ConfigError
from layercast.geometry import OffGrid
from layercast.group import Group
from layercast.sources import CheckpointSource, HostViews, LayerSource, SyntheticSource, positions
from layercast.stream import stream_layers
from layercast.timeline import Event
from layercast.transport import Transport

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
    slots: int | None = None
    piece_bytes: int | None = None
    direct: bool = False
    placement: PlacementKind = "tensor"
    off_grid: OffGrid = "refuse"
    timeline_events: int = 0
    verifier: Verifier | None = None

    def open(self) -> LayerSource:
        """The source, opened in this process."""
        if self.synthetic is not None:
            return SyntheticSource(self.synthetic)
        if self.checkpoint is None:
            raise ConfigError("name a checkpoint, or a shape with --synthetic")
        return CheckpointSource(Checkpoint.open(self.checkpoint, off_grid=self.off_grid), self.placement)


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


@dataclasses.dataclass
class RankReport:
    """What a rank's process sends back: per layer its figures, and how its transport worked."""

    rows: list[dict[str, Any]]
    transport: dict[str, Any]
    events: list[Event]
    arena_seconds: float = 0.0


def run_rank(group: Group, plan: Plan, progress: Connection | None) -> RankReport:
    """One rank's process: streams the plan's layers."""
    source = plan.open()
    if group.rank != 0:
        progress = None
    device = open_device(plan.device, group.rank)
    started = time.monotonic()
    arena = None
    if plan.direct:
        arena = Arena(
            source,
            group.rank,
            plan.tp,
            layers=plan.layers,
            device=device,
            progress=None if progress is None else lambda done, total: progress.send(("loading", done, total)),
        )
    loaded = time.monotonic()
    with Transport(
        group,
        source.layout(plan.tp),
        num_experts=positions(source, plan.tp),
        device=device,
        slots=plan.slots,
        piece_bytes=plan.piece_bytes,
        arena=arena,
        timeline_events=plan.timeline_events,
    ) as transport:
        rows = [_run_layer(group, plan, transport, source, layer, progress) for layer in plan.layers]
        report = RankReport(rows, transport.describe(), transport.timeline(), loaded - started)
    if arena is not None:
        arena.close()
    return report


def _run_layer(
    group: Group, plan: Plan, transport: Transport, source: LayerSource, layer: int, progress: Connection | None
) -> dict[str, Any]:
    if plan.verifier is not None or plan.direct:
        group.barrier(f"layer {layer}")  # the time of a layer must not hold the check or the loading before it
    started = time.monotonic()
    [figures] = stream_layers(transport, source, [layer])
    row = figures.as_dict()
    row["wall_ms"] = (time.monotonic() - started) * 1e3
    if plan.verifier is not None:
        row["wrong"] = plan.verifier(source, layer, group.rank, plan.tp, transport.host_views())
    if progress is not None:
        progress.send(("streaming", figures.bytes * plan.tp, len(plan.layers)))
    return row


def run(plan: Plan, console: Console) -> tuple[dict[str, Any], list[RankReport]]:
    """Runs the ranks behind a progress bar; returns the report that `--json` prints, and the ranks' own."""
    check_device(plan.device, plan.tp)
    source = plan.open()
    layout = source.layout(plan.tp)
    reader, writer = multiprocessing.Pipe(duplex=False)
    started = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("starting", total=None, done="")
        follower = threading.Thread(target=_follow, args=(reader, progress, task), daemon=True)
        follower.start()
        try:
            ranks: list[RankReport] = launch(run_rank, plan.tp, args=(plan, writer))
        finally:
            writer.send(None)
            follower.join()
            reader.close()
            writer.close()
    return _report(plan, source, layout.nbytes, ranks, time.monotonic() - started), ranks


def _follow(reader: Connection, progress: Progress, task: TaskID) -> None:
    layers = moved = 0
    started = time.monotonic()
    while (message := reader.recv()) is not None:
        phase, value, total = message
        if phase == "loading":
            done = f"{value / 1e9:.1f}/{total / 1e9:.1f} GB of rank 0's arena"
            progress.update(task, description="loading", completed=value, total=total, done=done)
            started = time.monotonic()
            continue
        layers, moved = layers + 1, moved + value
        speed = moved / max(time.monotonic() - started, 1e-9) / 1e9
        done = f"{layers}/{total} layers  {speed:.1f} GB/s"
        progress.update(task, description="streaming", completed=layers, total=total, done=done)


def _report(plan: Plan, source: LayerSource, share: int, ranks: list[RankReport], seconds: float) -> dict[str, Any]:
    per_layer = []
    for rows in zip(*(rank.rows for rank in ranks), strict=True):
        first = rows[0]
        nbytes = sum(row["bytes"] for row in rows)
        wall_ms = max(row["wall_ms"] for row in rows)
        per_layer.append(
            {
                "layer": first["layer"],
                "experts": source.experts(first["layer"]),
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
    shares = (source.placement(layer, plan.tp) for layer in plan.layers)
    expected = sum(where.experts * where.parts for where in shares) * share
    verified = None
    if plan.verifier is not None:
        verified = total == expected and not any(row["wrong"] for row in per_layer)
    moving = sum(row["bytes"] / max(row["gbps"], 1e-9) / 1e9 for row in per_layer)
    return {
        "source": source.name,
        "tp": plan.tp,
        "layers": len(per_layer),
        "experts": sum(row["experts"] for row in per_layer),
        "bytes": total,
        "verified": verified,
        "seconds": round(seconds, 3),
        "gbps": round(total / max(moving, 1e-9) / 1e9, 3),
        "arena_seconds": round(max(rank.arena_seconds for rank in ranks), 3),
        **ranks[0].transport,
        "device": plan.device,
        "per_layer": per_layer,
    }


def counted(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def show(report: dict[str, Any], console: Console) -> None:
    """The report as a table and a summary."""
    title = f"{report['source']}: {counted(report['tp'], 'rank')}, device {report['device']}, times in ms"
    table = Table(title=title, title_justify="left")
    for name in ("layer", "experts", "MB", "writer", "slot wait", "copy", "total", "GB/s"):
        table.add_column(name, justify="right")
    for row in report["per_layer"]:
        times = (f"{row[name]:.1f}" for name in ("writer_ms", "slot_wait_ms", "copy_ms", "total_ms"))
        mb, speed = f"{row['bytes'] / 1e6:.1f}", f"{row['gbps']:.2f}"
        table.add_row(str(row["layer"]), str(row["experts"]), mb, *times, speed)
    console.print(table)
    if report["arena_seconds"]:
        console.print(f"arenas loaded in {report['arena_seconds']:.1f} s", soft_wrap=True)
    console.print(
        f"{counted(report['layers'], 'layer')}, {counted(report['experts'], 'expert')},"
        f" {report['bytes'] / 1e9:.3f} GB to {counted(report['tp'], 'rank')} at {report['gbps']:.2f} GB/s;"
        f" {report['seconds']:.1f} s with start-up",
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
