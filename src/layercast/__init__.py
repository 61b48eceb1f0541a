"""layercast: every expert of a mixture-of-experts layer, from host memory to every tensor-parallel rank."""

from __future__ import annotations

from layercast.arena import Arena
from layercast.checkpoint import Checkpoint
from layercast.devices import open_device
from layercast.errors import LayercastError
from layercast.geometry import ExpertLayout
from layercast.group import Group
from layercast.launch import launch
from layercast.observe import LayerStatistics
from layercast.sources import CheckpointSource, LayerSource, SyntheticSource
from layercast.stream import LayerStream, LayerWeights, stream_layers
from layercast.transport import Transport

__all__ = [
    "Arena",
    "Checkpoint",
    "CheckpointSource",
    "ExpertLayout",
    "Group",
    "LayerSource",
    "LayerStatistics",
    "LayerStream",
    "LayerWeights",
    "LayercastError",
    "SyntheticSource",
    "Transport",
    "__version__",
    "launch",
    "open_device",
    "stream_layers",
]
__version__ = "0.1.0"
