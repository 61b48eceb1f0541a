"""The `layercast` command: its commands, and how errors reach a person."""

from __future__ import annotations

import errno
import os
import sys

import typer

import layercast
from layercast.cli.bench import bench
from layercast.cli.demo import demo
from layercast.cli.doctor import doctor
from layercast.cli.inspect import inspect
from layercast.cli.prefill import prefill
from layercast.cli.stream import stream
from layercast.cli.synth import synth
from layercast.cli.trace import trace
from layercast.errors import ConfigError, LaunchError, LayercastError, ResourceError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Moves the experts of mixture-of-experts layers from host memory to every tensor-parallel rank.",
)
app.command()(demo)
app.command()(bench)
app.command()(stream)
app.command()(prefill)
app.command()(inspect)
app.command()(synth)
app.command()(trace)
app.command()(doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(layercast.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Options of every command."""


def main() -> None:
    """Entry point: exit code 0 for success, 2 for what the user can mend, 1 for a failed stream, 130 for Ctrl-C."""
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # closed by the caller
                sys.stdout.flush()  # while there is still somebody to say that it failed
    except LayercastError as error:
        sys.exit(report(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EPIPE):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter's own last try would fail again
        if error.errno == errno.EPIPE:  # the reader has had enough
            sys.exit(1)
        sys.exit(report(ResourceError(f"the output could not be written: {error.strerror}")))


def report(error: LayercastError) -> int:
    """One line on stderr, with a hint where there is one; returns the exit code."""
    cause = error.__cause__ if isinstance(error, LaunchError) else error
    if isinstance(cause, LayercastError):
        error = cause
    text = " ".join(error.message.split("\n")[0].split())
    hint = f" (hint: {error.hint})" if error.hint else ""
    print(f"layercast: {text}{hint}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError | ResourceError) else 1
