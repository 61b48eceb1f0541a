"""The command line: one file per command. stdout is data, stderr is talk."""

from __future__ import annotations

from layercast.cli.main import app, main

__all__ = ["app", "main"]
