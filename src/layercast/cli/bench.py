"""`layercast bench`: limits of this machine and what of them arrives."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from layercast.bench.measures import MEASURES, Bench
from layercast.bench.report import as_json, check_plot, plot, show
from layercast.errors import ConfigError


def bench(
    only: Annotated[list[str] | None, typer.Argument(help=f"Which: {', '.join(MEASURES)}; none: all.")] = None,
    tp: Annotated[str, typer.Option(help="Numbers of ranks, with commas.")] = "1,2,4",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: a minute, and noisier.")] = False,
    as_object: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Also draw it, to this SVG or PNG file.")] = None,
) -> None:
    """Measure this machine's limits and this library in one run."""
    if unknown := sorted(set(only or ()) - set(MEASURES)):
        raise ConfigError(f"no measurement {', '.join(unknown)}", hint=f"there are {', '.join(MEASURES)}")
    try:
        numbers = tuple(int(number) for number in tp.split(","))
    except ValueError:
        raise ConfigError(f"--tp {tp}: expected numbers with commas, such as 1,2,4") from None
    if min(numbers) < 1:
        raise ConfigError(f"--tp {tp}: expected at least 1 rank")
    if plot_to is not None:
        check_plot(plot_to)
    talk = Console(stderr=True)
    started = time.monotonic()
    settings = Bench(tp=numbers, quick=quick)
    # Ratios are of one run: the limits are measured whatever is asked for.
    chosen = ["memcpy", *[name for name in MEASURES if name != "memcpy" and (not only or name in only)]]
    with talk.status("") as status:
        for number, name in enumerate(chosen, start=1):
            status.update(f"{number}/{len(chosen)} {name}")
            settings.lines.extend(MEASURES[name](settings))
    if as_object:
        print(json.dumps(as_json(settings.lines, time.monotonic() - started)))
    else:
        show(settings.lines, Console())
    if plot_to is not None:
        plot(settings.lines, plot_to)
