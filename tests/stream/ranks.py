"""What the ranks of the stream's tests run: functions of a module, since they are sent to other processes."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time

import pytest

from layercast import Arena, Group, LayerStream
from layercast.errors import (
    AgreementError,
    Cancelled,
    ConfigError,
    ForkError,
    GroupError,
    LayerTimeout,
    ProtocolError,
    ResourceError,
    StateError,
    WriterError,
)
from tests.stream.sources import LAYOUT, Expected, TinySource, wrong

EXPERTS = (3, 1, 4, 2, 4, 1, 3)  # per layer; they differ
ORDERS = ("straight", "reversed", "repeated", "random")


def source(layers: int) -> TinySource:
    return TinySource({2 * number + 1: EXPERTS[number] for number in range(layers)})


def order(name: str, layers: tuple[int, ...]) -> list[int]:
    """Three chunks' worth."""
    if name == "straight":
        return list(layers) * 3
    if name == "reversed":
        return list(reversed(layers)) * 3
    if name == "repeated":
        return [layer for layer in layers for _ in range(2)] * 3
    chosen = random.Random(len(layers))
    return [chosen.choice(layers) for _ in range(3 * len(layers))]


def sweep(group: Group) -> list[tuple[int, int, str, int, dict[str, int]]]:
    """Every number of layers, depth and order: (layers, depth, order, wrong uses, statistics)."""
    found = []
    for layers in range(1, 8):
        for depth in range(1, 5):
            for name in ORDERS:
                tiny = source(layers)
                with LayerStream(tiny, group, depth=depth) as stream:
                    bad = 0
                    addresses = set()
                    for layer in order(name, tiny.layers):
                        with stream.layer(layer) as weights:
                            assert weights.layer == layer
                            addresses.add(weights.w13.address)
                            bad += bool(wrong(weights, group.rank))
                    assert len(addresses) <= depth
                    found.append((layers, depth, name, bad, stream.statistics()))
    return found


def selections(group: Group) -> list[str]:
    """Some experts, more of the same layer, all of it, none, and residents."""
    tiny = TinySource({0: 6, 1: 6, 2: 6, 3: 6})
    expected = Expected(tiny, group.rank, group.tp)
    trouble = []

    def use(stream: LayerStream, layer: int, experts, need, **more) -> int:
        with stream.layer(layer, experts, **more) as weights:
            if bad := expected.wrong(weights, need):
                trouble.append(f"layer {layer}, {experts}: wrong {bad}")
            return stream.statistics()["loads"]

    for depth in (1, 2, 3):
        with LayerStream(tiny, group, depth=depth) as stream:
            use(stream, 3, [], [])  # first of all: never loaded ahead from now on
            use(stream, 0, [4, 1], [4, 1])
            use(stream, 0, [1, 2], [1, 2])
            use(stream, 0, None, range(6))
            use(stream, 1, [], [])
            use(stream, 2, [5], [5])
            use(stream, 2, [0, 1, 2, 3, 4, 5], range(6))
            with stream.layer(1) as held:
                kinds = list(zip(held.values(), LAYOUT.sizes, strict=True))
                there = {expert: [view.address + expert * size for view, size in kinds] for expert in (0, 3)}
                if depth > 1:  # a layer can be had from what another device layer holds
                    with stream.layer(3, [2], resident=there) as weights:
                        if bad := expected.wrong(weights, [2]):
                            trouble.append(f"residents: wrong {bad}")
                        for view in weights.values():
                            for e in (0, 3):
                                at = held[view.name].numpy().reshape(6, -1).view("u1")[e]
                                here = view.numpy().reshape(6, -1).view("u1")[e]
                                if at.tobytes() != here.tobytes():
                                    trouble.append(f"resident {e} of {view.name} depth {depth} {weights.statistics}")
    return trouble


def failing_prefetch(group: Group) -> None:
    """The prefetch of layer 1 fails: layer 0 is used unharmed, layer(1) raises on every rank."""

    class Failing(TinySource):
        def writer(self, layer: int, tp: int):
            if layer == 1:
                raise OSError("the disk is gone")
            return super().writer(layer, tp)

    with LayerStream(Failing({0: 2, 1: 2}), group, depth=2) as stream:
        with stream.layer(0) as weights:
            time.sleep(0.1)
            assert not wrong(weights, group.rank)
        with pytest.raises(WriterError, match="the disk is gone"):
            stream.acquire(1)
        with pytest.raises(WriterError, match="the disk is gone"):
            stream.acquire(1)
        stream.recover(30)
        with stream.layer(0) as weights:
            assert not wrong(weights, group.rank)


def cancelled_prefetch(group: Group) -> None:
    slow = "link:2MB/s"
    with LayerStream(TinySource({0: 1, 1: 100, 2: 1}), group, slow, depth=2) as stream:
        with stream.layer(0) as weights:
            if group.rank == group.tp - 1:
                assert stream.cancel(1) == 1
            assert not wrong(weights, group.rank)
        with pytest.raises(Cancelled):
            stream.acquire(1)
        for layer in (1, 2, 0):
            with stream.layer(layer) as weights:
                assert weights.layer == layer and not wrong(weights, group.rank)


def disagreement(group: Group) -> str:
    with LayerStream(TinySource(dict.fromkeys(range(8), 2)), group, depth=1) as stream:
        for layer in (0, 1, 2):
            with stream.layer(layer):
                pass
        with pytest.raises(ProtocolError) as caught:
            # the prefetch of layer 3 is everybody's; what follows differs
            for layer in (3, 6 if group.rank == 1 else 5, 7):
                with stream.layer(layer):
                    pass
        return str(caught.value)


def absent(group: Group) -> str:
    """Rank 1 computes without end; limits count from the moment of waiting."""
    with LayerStream(TinySource({0: 2, 1: 2, 2: 2}), group, depth=1, join_timeout=0.4) as stream:
        with stream.layer(0):
            pass
        with stream.layer(1):
            time.sleep(1.0)  # both: nobody waits, no limit runs
        with stream.layer(2):
            pass
        if group.rank == 1:
            group.barrier("seen")
            return ""
        with stream.layer(0):
            pass
        with pytest.raises(LayerTimeout) as caught:
            stream.acquire(1)
        group.barrier("seen")
        return str(caught.value)


def moving(group: Group) -> None:
    """Rank 1's model is slow to let go of each device layer: no load waits as long as the limit, three together do."""

    def fence():
        return lambda: time.sleep(0.5 if group.rank == 1 else 0)

    with LayerStream(TinySource(dict.fromkeys(range(6), 2)), group, depth=3, fence=fence, join_timeout=0.8) as stream:
        with stream.layer(0), stream.layer(1), stream.layer(2):
            pass
        with stream.layer(5) as weights:
            assert weights.waited_s > 1 and not wrong(weights, group.rank)


def misuse(group: Group) -> None:
    with pytest.raises(ConfigError, match="depth"):
        LayerStream(source(2), group, depth=0)
    for depth in (1.5, "2", None, True):
        with pytest.raises(ConfigError, match="depth: expected a number"):
            LayerStream(source(2), group, depth=depth)
    with LayerStream(source(2), group, depth=10**7) as deep:
        assert deep.depth == 2
    with pytest.raises(ResourceError, match="device layers of .* need"):
        LayerStream(TinySource({0: 10**8, 1: 2, 2: 2}), group, depth=3)
    with pytest.raises(ConfigError, match="each once"):
        LayerStream(source(2), group, layers=[1, 1])
    stream = LayerStream(source(2), group, depth=1)
    with pytest.raises(ConfigError, match="expected a whole number"):
        stream.acquire(1.0)
    with pytest.raises(ConfigError, match="none of this stream's"):
        stream.acquire(2)
    with pytest.raises(ConfigError, match="do not exist"):
        stream.acquire(1, [7])
    for strange in ([0], {"0": [1] * 4}, {0: None}, {0: [1]}, {0: ["here"] * len(stream.layout.kinds)}):
        with pytest.raises(ConfigError, match="resident"):
            stream.acquire(1, resident=strange)
    for strange in ([0], {"0": [1]}, {0: 1}, {0: ["here"]}):
        with pytest.raises(ConfigError, match="resident: expected a mapping"):
            stream.transport.join(1, 1, 2, resident=strange)
    with stream.layer(1) as weights:
        view = weights.w13
        with pytest.raises(StateError, match="all 1 device layers are held"):
            stream.acquire(3)
    for use in (lambda: weights.w13, lambda: weights["w2"], view.numpy, lambda: view.address, view.__dlpack__):
        with pytest.raises(StateError, match="layer 1 has been released"):
            use()
    stream.release(weights)
    stream.close()
    stream.close()
    with pytest.raises(StateError, match="closed"):
        stream.acquire(1)


def fence_that_raises(group: Group) -> None:
    fences = [ValueError("no event"), None]

    def fence():
        if (error := fences.pop(0)) is not None:
            raise error
        return lambda: None

    with LayerStream(source(2), group, depth=1, fence=fence) as stream:
        with pytest.raises(ValueError, match="no event"), stream.layer(1):
            pass
        with stream.layer(3) as weights:
            assert not wrong(weights, group.rank)


def from_arena(group: Group) -> list[bool]:
    """Layers in the arena come straight from it, the others through the slots; (direct) per use."""
    tiny = source(4)
    with Arena(tiny, group.rank, group.tp, layers=[1, 5]) as arena:
        with LayerStream(tiny, group, depth=2, arena=arena) as stream:
            direct = []
            for layer in tiny.layers * 2:
                with stream.layer(layer) as weights:
                    assert not wrong(weights, group.rank)
                    direct.append(weights.statistics.direct)
        return direct


def other_depth(group: Group) -> None:
    if group.rank == 0:
        with LayerStream(source(4), group, depth=2):
            group.barrier("seen")
    else:
        with pytest.raises(AgreementError, match="device_layers"):
            LayerStream(source(4), group, depth=3)
        group.barrier("seen")


def forked(group: Group) -> None:
    with LayerStream(source(2), group, depth=2) as stream:
        with stream.layer(1):
            pass
        if (child := os.fork()) == 0:
            with contextlib.suppress(ForkError):
                stream.acquire(3)
                os._exit(1)
            stream.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with stream.layer(3) as weights:
            assert not wrong(weights, group.rank)


def dropped(group: Group) -> int:
    """Streams without close, in the middle of a prefetch: threads do not stay."""
    before = threading.active_count()
    for _ in range(5):
        stream = LayerStream(TinySource({0: 4, 1: 4}), group, depth=2)
        with stream.layer(0):
            pass
        group.barrier("used")
        del stream
    return threading.active_count() - before


def left_open(group: Group) -> None:
    """The interpreter ends with a stream that waits for rank 1, which never comes."""
    stream = LayerStream(TinySource({0: 4, 1: 4}), group, depth=2)
    if group.rank == 0:
        with pytest.raises(GroupError):
            threading.Timer(0.2, stream.cancel).start()
            stream.acquire(0)
