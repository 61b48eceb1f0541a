"""`layercast stream`: a checkpoint's layers, or a synthetic shape's, to every rank."""

from __future__ import annotations

import enum
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from layercast.cli.streaming import Plan, compare_with_source, finish, parse_layers, run
from layercast.errors import ConfigError


class Placing(enum.Enum):
    """What ranks share: experts, or the layer."""

    TENSOR = "tensor"
    EXPERT = "expert"


def stream(
    checkpoint: Annotated[Path | None, typer.Argument(help="Folder or file of a safetensors checkpoint.")] = None,
    synthetic: Annotated[
        str | None, typer.Option(help="Instead of a checkpoint: a model's shape, such as glm-5-next.")
    ] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks, a process each.")] = 2,
    device: Annotated[str, typer.Option(help="host, cuda, cuda:0, or a simulated bus: link:25GB/s.")] = "host",
    layers: Annotated[
        str | None, typer.Option(help="A count (2: the first two) or a range (3:44, both included).")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Buffers per rank between rank 0 and the devices.")] = None,
    piece_bytes: Annotated[
        int | None, typer.Option(help="Bytes per rank handed over at a time; default: what suits the caches.")
    ] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Load the layers into host memory first, cut per rank; copy from there.")
    ] = False,
    placement: Annotated[
        Placing, typer.Option(help="tensor: each expert is cut over the ranks; expert: each rank owns whole ones.")
    ] = Placing.TENSOR,
    finer: Annotated[
        bool, typer.Option("--finer", help="Where a cut is off the block grid, hand out scales on a finer one.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte on every rank.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Stream MoE layers, one after the other, to every rank."""
    if (checkpoint is None) == (synthetic is None):
        raise ConfigError("name either a checkpoint or a shape with --synthetic", hint="layercast stream --help")
    if tp < 1:
        raise ConfigError(f"--tp {tp}: expected at least 1")
    if verify and "move=no" in device:
        raise ConfigError(f"--verify: device {device} moves no bytes that could be verified")
    if synthetic is not None and (finer or placement is Placing.EXPERT):
        raise ConfigError("--finer and --placement expert are for checkpoints; a synthetic shape is cut over the ranks")
    plan = Plan(
        tp=tp,
        layers=(),
        checkpoint=checkpoint,
        synthetic=synthetic,
        device=device,
        slots=slots,
        piece_bytes=piece_bytes,
        direct=direct,
        placement=placement.value,
        off_grid="finer" if finer else "refuse",
        verifier=compare_with_source if verify else None,
    )
    chosen = parse_layers(layers, plan.open().layers)
    report, _ = run(replace(plan, layers=chosen), Console(stderr=True))
    raise typer.Exit(finish(report, as_json))
