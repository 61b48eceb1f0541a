"""Results as a table, as JSON and as a picture."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.util
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from layercast import __version__
from layercast.bench.measures import Line
from layercast.errors import ConfigError
from layercast.machine import cache_bytes


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            model = line.partition(":")[2].strip()
            break
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "layercast": __version__,
        "date": datetime.date.today().isoformat(),
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "l2_bytes": cache_bytes(2),
        "l3_bytes": cache_bytes(3),
        "kernel": platform.release(),
        "huge_pages": huge.read_text().strip() if huge.exists() else "unknown",
        "load_average": os.getloadavg()[0],
    }


def as_json(lines: Sequence[Line], seconds: float) -> dict[str, Any]:
    """What `--json` prints."""
    rows = [{**dataclasses.asdict(line), "ratio": line.ratio} for line in lines]
    return {"machine": machine(), "seconds": round(seconds, 1), "lines": rows}


def verdict(line: Line) -> str:
    """The ratio in words."""
    if line.ratio is None:
        return ""
    return f"{line.ratio:.2f} {line.against}"


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 0.01 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def show(lines: Sequence[Line], console: Console) -> None:
    """A table, a line per figure."""
    about = machine()
    console.print(
        f"{about['cpu']}, {about['cores']} cores, L2 {(about['l2_bytes'] or 0) >> 10} KiB, "
        f"L3 {(about['l3_bytes'] or 0) >> 20} MiB, Linux {about['kernel']}",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name, justify in (("measure", "left"), ("case", "left"), ("value", "right"), ("unit", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("ratio to")
    table.add_column("besides")
    before = ""
    for line in lines:
        besides = ", ".join(f"{key} {_number(float(value))}" for key, value in line.detail.items())
        shown = line.measure if line.measure != before else ""
        table.add_row(shown, line.case, _number(line.value), line.unit, verdict(line), besides)
        before = line.measure
    console.print(table)


def check_plot(path: Path) -> None:
    """What cannot be drawn is better known before the minutes of measuring than after. Raises ConfigError."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib", hint="pip install 'layercast[plot]'")
    if path.suffix.lower() not in (".svg", ".png", ".pdf") or not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: expected a file .svg, .png or .pdf in a folder that exists")


def plot(lines: Sequence[Line], path: Path) -> None:
    """Bars per measure, its limit as a line. Needs matplotlib, the extra `plot`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(f"{line.measure} [{line.unit}]", []).append(line)
    columns = 3
    rows = -(-len(groups) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5 * columns, 2.6 * rows), squeeze=False)
    for axis, (title, own) in zip(axes.flat, groups.items(), strict=False):
        axis.barh([line.case for line in own], [line.value for line in own], color="#4878a8")
        limits = {line.limit for line in own if line.limit}
        for limit in limits:
            axis.axvline(limit, color="#b04030", linewidth=1, label=own[0].against)
        if limits:
            axis.legend(fontsize=7)
        axis.invert_yaxis()
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(groups) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
