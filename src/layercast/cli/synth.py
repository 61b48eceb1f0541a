"""`layercast synth`: a checkpoint of random numbers with a real model's structure."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from layercast.checkpoint import write_synthetic_checkpoint
from layercast.checkpoint.formats import FORMATS
from layercast.checkpoint.synth import RECIPES


def synth(
    out: Annotated[Path, typer.Argument(help="New or empty folder to write to.")],
    like: Annotated[str, typer.Option(help=f"Family: {', '.join(RECIPES)}.")],
    form: Annotated[str, typer.Option("--format", help=f"Of the experts: {', '.join(FORMATS)}.")],
    layers: Annotated[int, typer.Option(help="Layers of the model, those without experts too.")] = 2,
    experts: Annotated[int, typer.Option(help="Experts per layer.")] = 8,
    hidden: Annotated[int, typer.Option(help="H, the hidden size.")] = 1024,
    intermediate: Annotated[int, typer.Option(help="I, an expert's intermediate size.")] = 512,
    vocab: Annotated[int, typer.Option(help="Tokens in the vocabulary.")] = 1024,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a valid checkpoint of random numbers, config.json included."""
    talk = Console(stderr=True)
    started, written = time.monotonic(), 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=talk,
        transient=True,
        disable=not talk.is_terminal,
    ) as progress:
        task = progress.add_task("writing", total=None)

        def count(done: int, total: int) -> None:
            nonlocal written
            written = done
            progress.update(task, completed=done, total=total)

        write_synthetic_checkpoint(
            out,
            like=like,
            form=form,
            layers=layers,
            experts=experts,
            hidden=hidden,
            intermediate=intermediate,
            vocab=vocab,
            seed=seed,
            progress=count,
        )
    seconds = time.monotonic() - started
    if as_json:
        print(json.dumps({"path": str(out), "bytes": written, "seconds": round(seconds, 3)}))
    else:
        print(f"{out}: {like}, {form}, {written:,} bytes in {seconds:.1f} s")
