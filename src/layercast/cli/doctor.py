"""`layercast doctor`: what this machine offers, what it forbids, and what that means."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layercast.doctor import Finding, examine

_MARKS = {"ok": "", "note": "note", "problem": "[bold]problem[/bold]"}


def doctor(
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Copy to each GPU from each NUMA node: a second each.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Look at driver, GPUs, memory and limits of this machine, and say what each means here."""
    findings = examine(measure=measure)
    if as_json:
        print(json.dumps({"findings": [finding.as_dict() for finding in findings]}))
    else:
        show(findings, Console())


def show(findings: list[Finding], console: Console) -> None:
    """One row a finding."""
    table = Table(show_lines=True)
    for name in ("", "what", "found", "what it means"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(_MARKS[finding.state], finding.what, escape(finding.found), escape(finding.means))
    console.print(table)
