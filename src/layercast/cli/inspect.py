"""`layercast inspect`: what a checkpoint holds, and what each rank would get of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layercast.checkpoint import Checkpoint


def inspect(
    checkpoint: Annotated[Path, typer.Argument(help="Folder or file of a safetensors checkpoint.")],
    finer: Annotated[
        bool, typer.Option("--finer", help="Cut inside blocks too, with scales on a finer grid: off_grid='finer'.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Show family, format, layers and experts of a checkpoint, and bytes per rank."""
    with Checkpoint.open(checkpoint, off_grid="finer" if finer else "refuse") as opened:
        found = opened.describe()
    if as_json:
        print(json.dumps(found))
    else:
        show(found, Console())


def show(found: dict[str, Any], console: Console) -> None:
    """The facts as two tables."""
    facts = Table(title=escape(found["path"]), title_justify="left", show_header=False, box=None)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(found):
        facts.add_row(name, escape(value))
    console.print(facts)
    table = Table(title="bytes per rank", title_justify="left")
    for name in ("T", "expert", "layer", "all layers"):
        table.add_column(name, justify="right")
    table.add_column("kinds", overflow="fold")
    for row in found["per_tp"]:
        if "refused" in row:
            table.add_row(str(row["tp"]), "", "", "", f"refused: {escape(row['refused'].partition(': ')[2])}")
            continue
        kinds = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in row["kinds"].items())
        numbers = (f"{row[name]:,}" for name in ("expert_bytes", "layer_bytes", "bytes"))
        table.add_row(str(row["tp"]), *numbers, kinds)
    console.print(table)


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    layers = found["layers"]
    lines = [
        ("family", f"{found['family']} (model_type {found['model_type']})"),
        ("format", _spans(found["formats"])),
        ("block", " x ".join(str(size or "row") for size in found["block"])),
        ("experts", f"{_spans(found['experts'])}; H {found['hidden_size']}, I {found['intermediate_size']}"),
        ("MoE layers", f"{layers['first']} to {layers['last']}, {layers['count']} of them"),
        ("names", f"{found['naming']}, prefix {found['name_prefix']!r}"),
        ("files", f"{found['files']}, {found['file_bytes']:,} bytes, {found['tensors']} tensors"),
    ]
    if found["prediction_layers"]:
        lines.insert(5, ("prediction", f"layers {', '.join(map(str, found['prediction_layers']))}, left out"))
    if left := found["not_understood"]["count"]:
        lines.append(("not understood", f"{left} tensors of experts, such as {found['not_understood']['names'][0]}"))
    return lines


def _spans(spans: list[dict[str, Any]]) -> str:
    """One value for all layers, or which layers have which."""
    if len({span["value"] for span in spans}) == 1:
        return str(spans[0]["value"])
    return ", ".join(f"{span['value']} (layers {span['first']} to {span['last']})" for span in spans)
