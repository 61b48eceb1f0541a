"""Layers ahead of the model: the successor travels while the current one is used."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from layercast import _native
from layercast.arena import Arena
from layercast.checkpoint import Checkpoint, Placement
from layercast.devices import Cuda
from layercast.errors import ConfigError, ForkError, StateError
from layercast.group import Group
from layercast.sources import CheckpointSource, LayerSource, positions
from layercast.stream.loader import Consumed, Load, Loader
from layercast.stream.order import Place, Places, Predictor
from layercast.stream.views import LayerWeights
from layercast.transport import Experts, Transport, residents

#: Records how far the model's work has come and returns what waits for it, such as an event of its stream.
Fence = Callable[[], Consumed]


class LayerStream:
    """A model's expert layers on this rank's device, `depth` at a time, loaded ahead of their use.

        with LayerStream(checkpoint, group, "host", depth=2) as stream:
            for i in stream.layers:
                with stream.layer(i) as weights:
                    ...  # weights.w13, weights.w2, ...: views of the device layer

    `source`: a `Checkpoint` or any `LayerSource`. `depth` device layers; with 1 the successor's copy starts when the
    current layer is released, with 2 and more they overlap. `layers`: the order to expect at first (None: the
    source's); what the model really does is learned, and right in any case. `arena`: layers in it need no writer.
    `fence`: called at each release, on the model's thread; what it returns is called before the device layer is
    loaded again, and returns when the model's work on it is over. None: the release itself says so.
    `join_timeout`: how long `layer` waits, in seconds, for a rank that does not come; it counts from the moment of
    waiting. Further options are `Transport`'s.

    Every rank opens its streams in the same order and uses the same layers in the same order. One thread at a time
    uses a stream; a thread of its own loads. Raises ConfigError, and what `Transport` raises.
    """

    def __init__(
        self,
        source: Checkpoint | LayerSource,
        group: Group,
        device: str | Cuda | _native.Device = "host",
        depth: int = 2,
        *,
        layers: Sequence[int] | None = None,
        arena: Arena | None = None,
        fence: Fence | None = None,
        join_timeout: float | None = 600.0,
        **options: Any,
    ) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise ConfigError(f"depth: expected a number of device layers, got {depth!r}")
        if depth < 1:
            raise ConfigError(f"depth: expected at least 1 device layer, got {depth}")
        if join_timeout is not None and not join_timeout > 0:
            raise ConfigError(f"join_timeout: expected more than 0 seconds (or None), got {join_timeout}")
        self.source = CheckpointSource(source) if isinstance(source, Checkpoint) else source
        self.layers = tuple(self.source.layers if layers is None else layers)
        if not self.layers or len(set(self.layers)) != len(self.layers):
            raise ConfigError(f"layers: expected some, each once, got {list(self.layers)}")
        if unknown := sorted(set(self.layers) - set(self.source.layers)):
            raise ConfigError(f"layers: {unknown} are no MoE layers of {self.source.name}")
        # More device layers than layers would stay empty.
        self.depth, self.join_timeout = min(depth, len(self.layers)), join_timeout
        self._owner = os.getpid()
        self.rank, self.tp_size = group.rank, group.tp
        self.layout = self.source.layout(group.tp)
        self._fence = fence
        self.transport = Transport(
            group,
            self.layout,
            num_experts=positions(self.source, group.tp),
            device=device,
            device_layers=self.depth,
            arena=arena,
            join_timeout=None,  # whoever waits for a layer has the limit
            **options,
        )
        self._loader = Loader(self.transport, self.source)
        self._finalizer = weakref.finalize(self, Loader.close, self._loader)
        self._lock = threading.Lock()
        self._places = Places(self.depth)
        self._begin()
        self._figures = {"uses": 0, "waits": 0, "loads": 0, "prefetched": 0}
        self._waited_s = 0.0

    def _begin(self) -> None:
        self._predictor = Predictor(self.layers, self.depth)
        self._places.clear()
        self._loads: dict[int, list[Load]] = {number: [] for number in range(self.depth)}
        self._consumed: dict[int, Consumed | None] = {}
        self._held: dict[LayerWeights, Place] = {}
        self._selective: set[int] = set()
        self._epoch = 0

    @contextlib.contextmanager
    def layer(
        self,
        layer: int,
        experts: Sequence[int] | None = None,
        *,
        resident: Mapping[int, Sequence[int]] | None = None,
    ) -> Iterator[LayerWeights]:
        """The layer's weights, valid inside the with block; see `acquire`."""
        weights = self.acquire(layer, experts, resident=resident)
        try:
            yield weights
        finally:
            self.release(weights)

    def acquire(
        self,
        layer: int,
        experts: Sequence[int] | None = None,
        *,
        resident: Mapping[int, Sequence[int]] | None = None,
    ) -> LayerWeights:
        """Wait until the layer is on the device and hold it there until `release`.

        `experts`: ids of those that are needed (None: all); the others' bytes are undefined. `resident`: experts to
        copy from these addresses on the device, one per kind, instead of from rank 0. A load that failed or was
        cancelled raises here, at the layer it belongs to, and asking again loads again. Raises ConfigError (no such
        layer or expert), StateError (closed; all device layers are held), GroupError.
        """
        layer = _whole_number("layer", layer)
        wanted = self._wanted(layer, experts, resident)
        with self._lock:
            self._check_open()
            # Refused before anything is noted: the ranks must stay alike.
            place = self._places.find(layer) or self._places.free()
            if place is None:
                raise StateError(
                    f"layer {layer}: all {self.depth} device layers are held",
                    hint="release one first, or open the stream with a greater depth",
                )
            self._predictor.use(layer)
            self._ensure(place, layer, wanted, resident or {})
            place.users += 1
            place.prefetched = False
            self._places.touch(place)
            loads = list(self._loads[place.number])
            self._prefetch()
        began = time.perf_counter()
        try:
            self._wait(loads)
        except BaseException:
            with self._lock:
                place.users -= 1
                # An interrupted wait leaves the load alone: it may be had by asking again.
                failed = any(load.future.done() and load.future.exception() is not None for load in loads)
                if failed and place.layer == layer:
                    self._places.empty(place)
            raise
        placement = self._placement(layer)
        owned = placement.experts_of(self.rank)
        weights = LayerWeights(
            layer,
            self.layout,
            len(owned),
            None if wanted is None else tuple(sorted(wanted)),
            self._addresses(place.number),
            self.transport.device,
        )
        weights.placed = None if placement.kind == "tensor" else owned
        weights.waited_s = time.perf_counter() - began
        weights.statistics = loads[-1].future.result() if loads else None
        with self._lock:
            self._held[weights] = place
            self._count(weights)
        return weights

    def release(self, weights: LayerWeights) -> None:
        """The model has finished with the layer (or its fence says when): the device layer is free. Idempotent."""
        if weights not in self._held:
            weights.release()
            return
        consumed: Consumed | None = None
        try:
            weights.release()
            if self._fence is not None:
                consumed = self._fence()
        finally:  # a fence that raises does not keep the place
            with self._lock:
                if (place := self._held.pop(weights, None)) is not None:
                    place.users -= 1
                    self._consumed[place.number] = consumed
                    if not self.closed:
                        self._prefetch()

    def _placement(self, layer: int) -> Placement:
        return self.source.placement(layer, self.tp_size)

    def _wanted(
        self, layer: int, experts: Sequence[int] | None, resident: Mapping[int, Sequence[int]] | None
    ) -> frozenset[int] | None:
        if layer not in self.layers:
            shown = f"{self.layers[0]} to {self.layers[-1]}"
            raise ConfigError(f"layer {layer!r} is none of this stream's {len(self.layers)} layers ({shown})")
        if experts is None and not resident:
            return None
        if self._placement(layer).kind != "tensor":
            raise ConfigError(f"layer {layer}: its experts are whole on their ranks; they can be loaded all only")
        count = self.source.experts(layer)
        experts = None if experts is None else [_whole_number("expert", expert) for expert in experts]
        there = dict(residents(resident))
        wanted = there.keys() | set(range(count) if experts is None else experts)
        if strange := sorted(wanted - set(range(count))):
            raise ConfigError(f"layer {layer}: experts {strange[:8]} do not exist, it has 0 to {count - 1}")
        for expert, addresses in there.items():
            if len(addresses) != len(self.layout.kinds):
                raise ConfigError(
                    f"layer {layer}: resident expert {expert}: expected an address for each of the"
                    f" {len(self.layout.kinds)} kinds, got {addresses!r}"
                )
        return frozenset(wanted)

    def _ensure(
        self, place: Place, layer: int, wanted: frozenset[int] | None, resident: Mapping[int, Sequence[int]]
    ) -> None:
        """Have `place` hold the wanted experts of the layer, sooner or later."""
        every = range(self.source.experts(layer))
        if wanted is None or len(wanted) == len(every):
            self._selective.discard(layer)
        else:
            self._selective.add(layer)
        if place.layer != layer:
            self._places.fill(place, layer, frozenset(), prefetched=False)
            self._loads[place.number] = []
        if place.experts is None:
            return
        missing = (frozenset(every) if wanted is None else wanted) - place.experts
        there = {expert: addresses for expert, addresses in resident.items() if expert in missing}
        place.experts = place.experts | missing
        if len(place.experts) == len(every):
            place.experts = None
        if missing:
            whole = len(missing) == len(every) and not there
            self._submit(place, layer, self._placement(layer) if whole else sorted(missing - there.keys()), there)

    def _submit(self, place: Place, layer: int, experts: Experts, resident: Mapping[int, Sequence[int]]) -> None:
        self._epoch += 1
        consumed = self._consumed.pop(place.number, None)
        load = Load(self._epoch, layer, place.number, experts, resident, consumed)
        self._loads[place.number].append(load)
        self._figures["loads"] += 1
        self._loader.submit(load)

    def _prefetch(self) -> None:
        ahead: list[int] = []
        for layer in self._predictor.ahead():
            if self._places.find(layer) is None and layer not in self._selective:
                place = self._places.free(keep=ahead)
                if place is None:
                    return
                self._places.fill(place, layer, None, prefetched=True)
                self._loads[place.number] = []
                self._figures["prefetched"] += 1
                self._submit(place, layer, self._placement(layer), {})
            ahead.append(layer)

    def _wait(self, loads: Sequence[Load]) -> None:
        """The limit is for one load that nobody else comes to, however many are before ours."""
        for load in loads:
            first = self._loader.oldest
            while not wait([load.future], timeout=self.join_timeout).done:
                if (oldest := self._loader.oldest) is first and first is not None and self.join_timeout is not None:
                    self.transport.overdue(first.epoch, self.join_timeout)
                first = oldest
            if (error := load.future.exception()) is not None:
                raise error

    def _addresses(self, place: int) -> list[int]:
        kinds = len(self.layout.kinds)
        return self.transport.destinations[place * kinds : (place + 1) * kinds]

    def _count(self, weights: LayerWeights) -> None:
        self._figures["uses"] += 1
        self._figures["waits"] += weights.waited_s > 1e-4
        self._waited_s += weights.waited_s

    def cancel(self, layer: int | None = None) -> int | None:
        """Give up the load of `layer`, or the oldest that is not over, on every rank; returns its layer.

        Its `layer` call raises Cancelled on every rank; calling again loads it. None where there is nothing to give up.
        """
        self._check_open()
        for load in self._loader.pending:
            if layer in (None, load.layer):
                return load.layer if self.transport.cancel(load.epoch) else None
        return None

    def recover(self, timeout: float | None = None) -> None:
        """After a failure: meet the other ranks again, with empty device layers; see `Transport.recover`."""
        self._check_open()
        for load in self._loader.pending:  # they fail, as the group has
            wait([load.future])
        with self._lock:
            for weights in list(self._held):
                weights.release()
            self.transport.recover(timeout)
            consumed = self._consumed  # what was enqueued before may still read the places
            self._begin()
            self._consumed = consumed

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self.transport.closed

    def _check_open(self) -> None:
        if os.getpid() != self._owner:
            raise ForkError(f"this stream belongs to pid {self._owner}, which forked; open one after the fork")
        if self.closed:
            raise StateError("this stream is closed; open a new one")

    def statistics(self) -> dict[str, Any]:
        """Since the start: uses, waits (uses that had to wait), waited_s, loads, prefetched, wasted (loads ahead that
        nobody used)."""
        with self._lock:
            return {**self._figures, "waited_s": self._waited_s, "wasted": self._places.wasted}

    def describe(self) -> dict[str, Any]:
        """How this stream works: the transport's description, depth, and the bytes of its device layers."""
        device_bytes = self.depth * self.transport.num_experts * self.layout.nbytes
        return {**self.transport.describe(), "depth": self.depth, "device_bytes": device_bytes}

    def close(self) -> None:
        """End loads and transport. Views become invalid. Idempotent, never raises."""
        self._finalizer()
        with self._lock:
            for weights in list(self._held):
                weights.release()

    def __enter__(self) -> LayerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole_number(what: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{what}: expected a whole number, got {value!r}") from None
