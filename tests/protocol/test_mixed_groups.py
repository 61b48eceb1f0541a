"""Ranks of this library beside independent version-2 ranks, in either role."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest
from tests.support.foreign import ForeignRank
from tests.support.rig import Rig
from tests.support.writers import make, pattern_source

from layercast import _native

KINDS, EXPERTS, SEED, LAYER = (200, 8, 100, 4), 9, 21, 4


def foreign(rig: Rig, rank: int) -> ForeignRank:
    slots = [rig.slot_pointers(s, rank) for s in range(2)]
    everybody = [[rig.slot_pointers(s, r) for r in range(rig.tp)] for s in range(2)]
    destinations = [d.address for d in rig.destinations[rank]]
    return ForeignRank(rig.control.map, rank, rig.tp, slots, destinations, KINDS, everybody if rank == 0 else None)


@pytest.mark.parametrize("tp", [2, 3])
def test_foreign_consumer(tp: int) -> None:
    rig = Rig(tp, KINDS, EXPERTS, version=2)
    stranger = foreign(rig, tp - 1)
    rig.transports = [rig.open(rank) for rank in range(tp - 1)]
    writer = _native.pattern_writer(SEED)

    def call(rank: int) -> object:
        for epoch in range(1, 21):
            if rank == tp - 1:
                stranger.load(epoch, LAYER, EXPERTS)
                continue
            rig.transports[rank].join(epoch, LAYER, EXPERTS)
            if rank == 0:
                rig.transports[0].run(epoch, LAYER, EXPERTS, writer)
            rig.transports[rank].wait(epoch)
        return "done"

    assert rig.each(call) == ["done"] * tp
    assert rig.wrong(SEED, LAYER, EXPERTS) == [0] * tp
    rig.close()


def test_foreign_producer() -> None:
    source = pattern_source(SEED, LAYER, 2, KINDS, EXPERTS)
    rig = Rig(2, KINDS, EXPERTS, version=2)
    stranger = foreign(rig, 0)
    transport = rig.open(1)

    def write(expert: int, slots: list[list[int]]) -> None:
        for rank, pointers in enumerate(slots):
            share, at = source[expert, rank], 0
            for pointer, size in zip(pointers, KINDS, strict=True):
                ctypes.memmove(pointer, share[at:].ctypes.data, size)
                at += size

    def call(rank: int) -> object:
        for epoch in range(1, 21):
            if rank == 0:
                stranger.load(epoch, LAYER, EXPERTS, write)
            else:
                transport.join(epoch, LAYER, EXPERTS)
                transport.wait(epoch)
        return "done"

    assert rig.each(call) == ["done"] * 2
    assert rig.wrong(SEED, LAYER, EXPERTS) == [0, 0]
    transport.close()


def test_a_foreign_creator_that_zeroes_only_its_own_bytes() -> None:
    """Garbage behind version 2's 5056 bytes: no extension, so everything is polled, and works."""
    rig = Rig(2, KINDS, EXPERTS, version=2)
    rig.control.map[5056:8192] = b"\x5a" * (8192 - 5056)
    with rig:
        for epoch in range(1, 6):
            rig.load_checked(epoch, LAYER, EXPERTS, _native.pattern_writer(SEED))
        assert rig.wrong(SEED, LAYER, EXPERTS) == [0, 0]


def peer_module() -> object:
    folder = Path(os.environ.get("LAYERCAST_TEST_PEER", Path(__file__).parents[3] / "shared" / "peer"))
    if not folder.is_dir():
        pytest.skip(f"no version-2 peer beside the checkout ({folder})")
    sys.path.insert(0, str(folder))
    try:
        return pytest.importorskip("polling_peer", reason="the peer is built for another Python or machine")
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("peer_rank", [0, 1])
def test_with_the_peer(peer_rank: int) -> None:
    peer = peer_module()
    source = pattern_source(SEED, LAYER, 2, KINDS, EXPERTS)
    rig = Rig(2, KINDS, EXPERTS, version=2)
    local = [p for s in range(2) for p in rig.slot_pointers(s, peer_rank)]
    everybody = [p for s in range(2) for r in range(2) for p in rig.slot_pointers(s, r)] if peer_rank == 0 else []
    destinations = [d.address for d in rig.destinations[peer_rank]]
    theirs = peer.Transport(  # type: ignore[attr-defined]
        rig.control.address,
        8192,
        peer_rank,
        2,
        0,
        local,
        destinations,
        everybody,
        list(KINDS),
        EXPERTS,
        20000,
    )
    ours = rig.open(1 - peer_rank)

    def call(rank: int) -> object:
        transport = theirs if rank == peer_rank else ours
        for epoch in range(1, 51):
            transport.join(epoch, LAYER, EXPERTS)
            if rank == 0 and peer_rank == 0:
                theirs.run_native(epoch, LAYER, EXPERTS, source.ctypes.data, EXPERTS, list(KINDS))
            elif rank == 0:
                ours.run(epoch, LAYER, EXPERTS, make("memory", source, SEED, LAYER, KINDS))
            transport.wait(epoch)
        return "done"

    assert rig.each(call) == ["done"] * 2
    assert rig.wrong(SEED, LAYER, EXPERTS) == [0, 0]
    theirs.close()
    ours.close()
