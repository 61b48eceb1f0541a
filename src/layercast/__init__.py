"""layercast: every expert of a mixture-of-experts layer, from host memory to every tensor-parallel rank."""

from __future__ import annotations

from layercast.errors import LayercastError

__all__ = ["LayercastError", "__version__"]
__version__ = "0.1.0"
