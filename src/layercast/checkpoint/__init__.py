"""Checkpoints on disk: tensors found, checked, and cut into the bytes that each rank needs."""

from __future__ import annotations

from layercast.checkpoint.blocks import BLOCK_DTYPE, LayerBlocks
from layercast.checkpoint.checkpoint import Checkpoint
from layercast.checkpoint.demo import write_demo_checkpoint
from layercast.checkpoint.placement import Placement
from layercast.checkpoint.synth import write_synthetic_checkpoint

__all__ = [
    "BLOCK_DTYPE",
    "Checkpoint",
    "LayerBlocks",
    "Placement",
    "write_demo_checkpoint",
    "write_synthetic_checkpoint",
]
