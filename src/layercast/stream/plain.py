"""Layer after layer of a source through a transport: the plain loop, without looking ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from layercast.observe import LayerStatistics
from layercast.sources import LayerSource
from layercast.transport import Transport


def stream_layers(
    transport: Transport, source: LayerSource, layers: Iterable[int] | None = None
) -> Iterator[LayerStatistics]:
    """Load each of `layers` (None: all of the source) on every rank; yields when its bytes are on this rank's device.

    Every rank iterates over the same layers. The device layer holds the yielded layer until the next step.
    """
    for layer in source.layers if layers is None else layers:
        staged = transport.rank == 0 and not transport.holds(layer)
        writer = source.writer(layer, transport.tp_size) if staged else None
        yield transport.load(transport.last_epoch_joined + 1, layer, source.placement(layer, transport.tp_size), writer)
