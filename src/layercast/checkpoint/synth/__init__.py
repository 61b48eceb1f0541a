"""Checkpoints of random numbers with the structure of real models: for tests, benchmarks and trials."""

from __future__ import annotations

from layercast.checkpoint.synth.models import RECIPES
from layercast.checkpoint.synth.synth import formats_of, write_synthetic_checkpoint

__all__ = ["RECIPES", "formats_of", "write_synthetic_checkpoint"]
