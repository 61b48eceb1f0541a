"""What happened, in numbers."""

from __future__ import annotations

from layercast.observe.statistics import LayerStatistics, named

__all__ = ["LayerStatistics", "named"]
