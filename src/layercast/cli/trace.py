"""`layercast trace`: streams layers and writes what each rank did when, for chrome://tracing or Perfetto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from layercast.cli.streaming import Plan, counted, parse_layers, run
from layercast.errors import ConfigError
from layercast.timeline import write_chrome_trace


def trace(
    out: Annotated[Path, typer.Argument(help="The JSON file to write; open it in ui.perfetto.dev.")],
    checkpoint: Annotated[Path | None, typer.Argument(help="Folder or file of a safetensors checkpoint.")] = None,
    synthetic: Annotated[str | None, typer.Option(help="Instead of a checkpoint: a model's shape.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks, a process each.")] = 2,
    device: Annotated[str, typer.Option(help="host, or a simulated bus such as link:25GB/s.")] = "host",
    layers: Annotated[str, typer.Option(help="A count or a range, as for stream.")] = "2",
    direct: Annotated[bool, typer.Option("--direct", help="From arenas, as for stream.")] = False,
    events: Annotated[int, typer.Option(help="Events that each rank keeps; older ones are dropped.")] = 1 << 16,
) -> None:
    """Stream layers and write a timeline: per piece writing, waiting, copying."""
    if (checkpoint is None) == (synthetic is None):
        raise ConfigError("name either a checkpoint or a shape with --synthetic", hint="layercast trace --help")
    if tp < 1 or events < 1:
        raise ConfigError(f"--tp {tp} --events {events}: expected at least 1 of each")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: its folder does not exist")
    plan = Plan(
        tp, (), checkpoint=checkpoint, synthetic=synthetic, device=device, direct=direct, timeline_events=events
    )
    plan = replace(plan, layers=parse_layers(layers, plan.open().layers))
    report, ranks = run(plan, Console(stderr=True))
    write_chrome_trace(out, [rank.events for rank in ranks])
    count = sum(len(rank.events) for rank in ranks)
    print(
        f"{out}: {count} events of {counted(report['tp'], 'rank')},"
        f" {counted(report['layers'], 'layer')} at {report['gbps']} GB/s"
    )
