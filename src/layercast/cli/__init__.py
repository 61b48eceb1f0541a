"""The command line: one file per command."""

from __future__ import annotations

import typer

import layercast

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Move the experts of mixture-of-experts layers to every tensor-parallel rank."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(layercast.__version__)


def main() -> None:
    """Entry point of the `layercast` command."""
    app()
