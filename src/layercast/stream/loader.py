"""The one thread that loads layers, in the order in which they were asked for."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from layercast.errors import LayercastError, ProtocolError
from layercast.observe import LayerStatistics
from layercast.sources import LayerSource
from layercast.transport import Experts, Transport
from layercast.writers import ExpertWriter, Views, Writer

_REMEMBERED = 12

#: Called before a device layer is loaded again; returns when the model has finished with it.
Consumed = Callable[[], object]


@dataclass(eq=False)
class Load:
    """One layer, or some experts of it, on its way to a device layer."""

    epoch: int
    layer: int
    place: int
    experts: Experts
    resident: Mapping[int, Sequence[int]]
    consumed: Consumed | None
    future: Future[LayerStatistics] = field(default_factory=Future)


class Loader:
    """Loads through a transport. `submit` never waits; a failure is the load's own, in its future."""

    def __init__(self, transport: Transport, source: LayerSource) -> None:
        self._transport, self._source = transport, source
        self._queue: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._pending: deque[Load] = deque()
        self._history: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()
        # A daemon, as it may be waiting for a peer when the interpreter ends; `close` joins it.
        self._thread = threading.Thread(target=self._loop, name="layercast stream", daemon=True)
        self._thread.start()

    def submit(self, load: Load) -> None:
        """Queue it behind all earlier ones."""
        with self._lock:
            self._pending.append(load)
            self._queue.put(load)

    @property
    def pending(self) -> list[Load]:
        """Loads that are not over, oldest first."""
        with self._lock:
            return list(self._pending)

    @property
    def oldest(self) -> Load | None:
        """The one that is under way."""
        with self._lock:
            return self._pending[0] if self._pending else None

    def _loop(self) -> None:
        while (load := self._queue.get()) is not None:
            try:
                result = self._load(load)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the layer raises it
                self._over(load, failed=True)
                load.future.set_exception(error)
            else:
                self._over(load, failed=False)
                load.future.set_result(result)

    def _over(self, load: Load, *, failed: bool) -> None:
        with self._lock:
            self._pending.remove(load)
            if not failed:
                self._history.append(load.layer)

    def _load(self, load: Load) -> LayerStatistics:
        transport = self._transport
        if load.consumed is not None:
            load.consumed()
        try:
            transport.join(load.epoch, load.layer, load.experts, resident=load.resident, device_layer=load.place)
            if transport.rank == 0:
                writer = None if transport.holds(load.layer) else self._writer(load.layer)
                transport.run(load.epoch, load.layer, load.experts, writer, resident=load.resident)
            return transport.wait(load.epoch)
        except ProtocolError as error:
            with self._lock:
                before = ", ".join(map(str, self._history)) or "nothing"
                after = ", ".join(str(queued.layer) for queued in self._pending)
            error.hint = (
                f"every rank must use the same layers in the same order; all had loaded {before}, and rank"
                f" {transport.rank} went on with {after}"
            )
            raise

    def _writer(self, layer: int) -> Writer | ExpertWriter:
        """A source that fails after the others have joined must reach them: its writer raises."""
        try:
            return self._source.writer(layer, self._transport.tp_size)
        except (LayercastError, OSError) as error:
            cause = error

        def refuse(expert: int, views: tuple[Views, ...]) -> None:
            raise cause

        return refuse

    def close(self) -> None:
        """End the transport and the thread. Loads that are not over fail. Idempotent."""
        self._transport.close()
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
