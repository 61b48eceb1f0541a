"""Which layer comes next, and which device layer it goes to. Decided alike on every rank: only calls count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class Predictor:
    """Learns the order in which a model uses its layers.

    At first each layer is followed by the next one, the last by the first. What has followed a layer before (given the
    one before that) is expected to follow it again. `window`: how many layers ahead are worth loading, at most
    `depth`: it grows by one with every right guess and is halved by a wrong one, so that an order that cannot be
    guessed costs little.
    """

    def __init__(self, layers: Sequence[int], depth: int) -> None:
        self._next = dict(zip(layers, [*layers[1:], layers[0]], strict=True))
        self._seen: dict[tuple[int | None, int], int] = {}
        self._depth = depth
        self._before: int | None = None
        self._current: int | None = None
        self.window = depth

    def _after(self, before: int | None, current: int) -> int:
        return self._seen.get((before, current), self._next[current])

    def use(self, layer: int) -> None:
        """The model uses `layer` now."""
        if self._current is not None:
            right = self._after(self._before, self._current) == layer
            self.window = min(self.window + 1, self._depth) if right else self.window // 2
            self._seen[self._before, self._current] = layer
        self._before, self._current = self._current, layer

    def ahead(self) -> Iterable[int]:
        """The layers that are expected next, `window` of them."""
        if self._current is None:
            return
        before, current = self._before, self._current
        for _ in range(self.window):
            before, current = current, self._after(before, current)
            yield current


@dataclass
class Place:
    """A device layer and what is in it, or will be when what was asked for has arrived."""

    number: int
    layer: int | None = None
    experts: frozenset[int] | None = None  # None: all of the layer
    users: int = 0
    touched: int = 0
    prefetched: bool = False  # and not used yet


class Places:
    """The device layers of a stream."""

    def __init__(self, depth: int) -> None:
        self._places = [Place(number) for number in range(depth)]
        self._clock = 0
        self.wasted = 0

    def find(self, layer: int) -> Place | None:
        """The one that holds `layer`."""
        return next((place for place in self._places if place.layer == layer), None)

    def free(self, keep: Iterable[int] = ()) -> Place | None:
        """The one to load into: not in use, not holding one of the layers to `keep`; the longest untouched."""
        kept = set(keep)
        usable = [place for place in self._places if not place.users and place.layer not in kept]
        return min(usable, key=lambda place: (place.layer is not None, place.touched), default=None)

    def touch(self, place: Place) -> None:
        """It is the newest now."""
        self._clock += 1
        place.touched = self._clock

    def fill(self, place: Place, layer: int, experts: frozenset[int] | None, *, prefetched: bool) -> None:
        """From now on `place` is `layer`'s."""
        self.empty(place)
        place.layer, place.experts, place.prefetched = layer, experts, prefetched
        self.touch(place)

    def empty(self, place: Place) -> None:
        """What it holds is given up."""
        self.wasted += place.prefetched
        place.layer, place.experts, place.prefetched = None, None, False

    def clear(self) -> None:
        """All of them, whoever holds them."""
        for place in self._places:
            self.empty(place)
            place.users = 0
