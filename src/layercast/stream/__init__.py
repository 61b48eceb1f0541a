"""Layer after layer to the model: one at a time (`stream_layers`), or ahead of its use (`LayerStream`)."""

from __future__ import annotations

from layercast.stream.layers import LayerStream
from layercast.stream.plain import stream_layers
from layercast.stream.views import LayerWeights, View

__all__ = ["LayerStream", "LayerWeights", "View", "stream_layers"]
