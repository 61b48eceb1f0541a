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
    table = Table(title="bytes per rank, T ranks", title_justify="left")
    for name in ("T", "expert", "layer", "all layers"):
        table.add_column(name, justify="right")
    table.add_column("kinds", overflow="fold")
    for row in found["per_tp"]:
        if "refused" in row:
            table.add_row(str(row["tp"]), "refused", "", "", escape(_why(row["refused"])))
            continue
        kinds = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in row["kinds"].items())
        numbers = (f"{row[name]:,}" for name in ("expert_bytes", "layer_bytes", "bytes"))
        table.add_row(str(row["tp"]), *numbers, kinds)
    console.print(table)
    if any("refused" in row and "block's edge" in row["refused"] for row in found["per_tp"]):
        console.print("Not on a block's edge? --finer cuts there too and hands out more scales;")
        console.print("stream --placement expert gives each rank whole experts.")


def _why(refused: str) -> str:
    """The part of a refusal that differs from T to T: the block is named above."""
    return refused.partition(": ")[2].removeprefix("Ir = ").rpartition(" (block")[0]


def _facts(found: dict[str, Any]) -> list[tuple[str, str]]:
    layers = found["layers"]
    lines = [
        ("family", f"{found['family']} (model_type {found['model_type']})"),
        ("format", _spans(found["formats"])),
        ("scales", _scales(*found["block"])),
        ("experts", f"{_spans(found['experts'])} per layer; hidden size H = {found['hidden_size']}"),
        ("", f"intermediate size I = {found['intermediate_size']}, Ir = I / T on a rank"),
        ("MoE layers", _span(layers["first"], layers["last"], layers["count"])),
        ("names", found["naming"]),
        ("files", f"{found['files']}, {found['file_bytes']:,} bytes, {found['tensors']} tensors"),
    ]
    if found["prediction_layers"]:
        lines.insert(6, ("prediction", f"layers {', '.join(map(str, found['prediction_layers']))}, left out"))
    if left := found["not_understood"]["count"]:
        lines.append(("not understood", f"{left} tensors of experts, such as {found['not_understood']['names'][0]}"))
    return lines


def _scales(rows: int, columns: int) -> str:
    if (rows, columns) == (1, 1):
        return "none"
    if not columns:
        return "one per row"
    return f"one per {columns} columns of a row" if rows == 1 else f"one per block of {rows} x {columns}"


def _span(first: int, last: int, count: int) -> str:
    if count == 1:
        return str(first)
    return f"{first} to {last}, " + ("all of them" if count == last - first + 1 else f"{count} of them")


def _spans(spans: list[dict[str, Any]]) -> str:
    """One value for all layers, or which layers have which."""
    if len({span["value"] for span in spans}) == 1:
        return str(spans[0]["value"])
    return ", ".join(f"{span['value']} (layers {span['first']} to {span['last']})" for span in spans)
