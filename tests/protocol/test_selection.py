"""Layers of which only some experts travel; writers with several threads; the direct path; checks on arrival."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tests.support.rig import Region, Rig

from layercast import _native, errors

KINDS = (4097, 16, 2048, 1)
EXPERTS = 12
UNTOUCHED = 0xEE


def whole_layer(tp: int, layer: int = 5) -> list[list[np.ndarray]]:
    """[rank][kind] uint8 [experts, bytes] of the pattern, from a layer loaded whole."""
    with Rig(tp, KINDS, EXPERTS) as rig:
        rig.load_checked(1, layer, EXPERTS, _native.pattern_writer(7))
        assert rig.wrong(7, layer, EXPERTS) == [0] * tp
        return [views(rig, rank) for rank in range(tp)]


def views(rig: Rig, rank: int) -> list[np.ndarray]:
    return [d.array.reshape(rig.experts, -1).copy() for d in rig.destinations[rank]]


def load(rig: Rig, epoch: int, ids, residents=(), layer: int = 5, writer=None, per_rank=None):
    """`per_rank(rank)`: the rank's residents, where they differ by address."""
    writer = writer or _native.pattern_writer(7)

    def call(rank: int) -> object:
        there = per_rank(rank) if per_rank else list(residents)
        rig.transports[rank].join(epoch, layer, len(ids), list(ids), there)
        if rank == 0:
            rig.transports[0].run(epoch, layer, len(ids), writer)
        return rig.transports[rank].wait(epoch)

    return rig.each(call)


def clear(rig: Rig) -> None:
    for rank in rig.destinations:
        for region in rank:
            region.array[:] = UNTOUCHED


@pytest.mark.parametrize("piece_bytes", [1 << 9, 10_000, 1 << 20])
@pytest.mark.parametrize("device", [_native.host_device, lambda: _native.link_device(0)])
@pytest.mark.parametrize("tp", [1, 3])
def test_only_the_selected_experts_move(tp: int, device, piece_bytes: int) -> None:
    expected = whole_layer(tp)
    with Rig(tp, KINDS, EXPERTS, piece_bytes=piece_bytes, device=device) as rig:
        for epoch, ids in enumerate(([3, 11, 4], [0], list(reversed(range(EXPERTS))), [], [7]), start=1):
            clear(rig)
            results = load(rig, epoch, ids)
            assert [r["bytes"] for r in results] == [len(ids) * sum(KINDS)] * tp, results
            for rank in range(tp):
                for got, want in zip(views(rig, rank), expected[rank], strict=True):
                    for expert in range(EXPERTS):
                        if expert in ids:
                            assert np.array_equal(got[expert], want[expert])
                        else:
                            assert (got[expert] == UNTOUCHED).all()


def test_a_python_writer_sees_the_selected_ids() -> None:
    seen: list[int] = []
    writer = _native.PythonWriter.views(lambda expert, views: seen.append(expert))
    with Rig(2, KINDS, EXPERTS) as rig:
        load(rig, 1, [9, 2, 5], writer=writer)
    assert seen == [9, 2, 5]


def test_residents_are_copied_on_the_device_or_left_in_place() -> None:
    tp = 2
    expected = whole_layer(tp)
    with Rig(tp, KINDS, EXPERTS) as rig:
        elsewhere = [[Region(k) for k in KINDS] for _ in range(tp)]
        for rank in range(tp):
            for region, kind in zip(elsewhere[rank], expected[rank], strict=True):
                region.array[: kind.shape[1]] = kind[6]
        clear(rig)
        results = load(rig, 1, [1, 2], per_rank=lambda r: [(4, []), (6, [region.address for region in elsewhere[r]])])
        assert [r["bytes"] for r in results] == [2 * sum(KINDS)] * tp
        assert [r["resident_bytes"] for r in results] == [sum(KINDS)] * tp
        for rank in range(tp):
            for got, want in zip(views(rig, rank), expected[rank], strict=True):
                for expert in (1, 2, 6):
                    assert np.array_equal(got[expert], want[expert])
                assert (got[[0, 3, 4, 5, *range(7, EXPERTS)]] == UNTOUCHED).all()


@pytest.mark.parametrize("theirs", [([1, 2], []), ([2, 1, 3], []), ([1, 2, 3], [(5, [])])])
def test_ranks_that_mean_other_experts_are_found(theirs) -> None:
    with Rig(2, KINDS, EXPERTS) as rig:

        def call(rank: int) -> object:
            ids, residents = ([1, 2, 3], []) if rank == 0 else theirs
            rig.transports[rank].join(1, 5, len(ids), ids, residents)
            if rank == 0:
                rig.transports[0].run(1, 5, len(ids), _native.pattern_writer(7))
            return rig.transports[rank].wait(1)

        for error in rig.each(call):
            assert isinstance(error, errors.ProtocolError)
            assert "rank 0 joined layer 5" in str(error) and "rank 1" in str(error)


def test_bad_selections_are_refused_before_anything_is_shared() -> None:
    with Rig(1, KINDS, EXPERTS) as rig:
        join = rig.transports[0].join
        for arguments, words in [
            ((1, 5, 2, [3, 3]), "named twice"),
            ((1, 5, 1, [EXPERTS]), "ids below 12, got 12"),
            ((1, 5, 1, [3], [(3, [])]), "named twice"),
            ((1, 5, 4, None, [(3, [])]), "streamed as well"),
            ((1, 5, 1, [3], [(4, [1, 2])]), "one per kind"),
        ]:
            with pytest.raises(errors.ConfigError, match=words):
                join(*arguments)
        assert load(rig, 1, [3])[0]["expert_count"] == 1


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("threads", [2, 3])
def test_writers_with_several_threads_publish_in_order(threads: int, slots: int) -> None:
    tp = 2
    rig = Rig(tp, KINDS, EXPERTS, slots=slots, piece_bytes=777)
    rig.transports = [rig.open(rank, writer_threads=threads) for rank in range(tp)]
    for epoch in range(1, 40):
        rig.load_checked(epoch, epoch, EXPERTS, _native.pattern_writer(epoch))
        assert rig.wrong(epoch, epoch, EXPERTS) == [0] * tp
    rig.close()


def test_a_failure_stops_all_writing_threads() -> None:
    rig = Rig(1, KINDS, EXPERTS, piece_bytes=100, device=lambda: _native.link_device(0, fail_at=9))
    rig.transports = [rig.open(0, writer_threads=4)]
    [error] = rig.load(1, 1, EXPERTS, _native.pattern_writer(1))
    assert isinstance(error, errors.DeviceError)
    rig.close()


def with_arenas(rig: Rig, layer: int) -> list[list[Region]]:
    arenas = []
    for rank, transport in enumerate(rig.transports):
        regions = [Region(EXPERTS * k) for k in KINDS]
        addresses = [region.address for region in regions]
        for first in range(0, EXPERTS, 5):
            count = min(5, EXPERTS - first)
            _native.fill_arena(_native.pattern_writer(7), layer, rank, rig.tp, first, count, list(KINDS), addresses)
        transport.set_arena(layer, addresses)
        arenas.append(regions)
    return arenas


@pytest.mark.parametrize("device", [_native.host_device, lambda: _native.link_device(0, latency_ns=20_000)])
def test_the_direct_path_gives_the_same_bytes(device) -> None:
    tp = 3
    expected = whole_layer(tp)
    rig = Rig(tp, KINDS, EXPERTS, device=device)
    rig.transports = [rig.open(rank, verify_every=1) for rank in range(tp)]
    arenas = with_arenas(rig, 5)
    direct = _native.direct_writer()
    for epoch, ids in enumerate((list(range(EXPERTS)), [0, 1, 2, 7, 9, 10], [11], []), start=1):
        clear(rig)
        results = load(rig, epoch, ids, writer=direct)
        assert [r["bytes"] for r in results] == [len(ids) * sum(KINDS)] * tp, results
        assert all(r["direct"] for r in results) or not ids
        for rank in range(tp):
            for got, want in zip(views(rig, rank), expected[rank], strict=True):
                assert np.array_equal(got[ids], want[ids])
                rest = sorted(set(range(EXPERTS)) - set(ids))
                assert (got[rest] == UNTOUCHED).all()
    results = load(rig, 9, [1, 2])  # and through the slots again
    assert not any(r["direct"] for r in results)
    rig.close()
    del arenas


def test_a_rank_without_the_arena_is_named() -> None:
    with Rig(2, KINDS, EXPERTS) as rig:
        arenas = with_arenas(rig, 5)
        rig.transports[1].set_arena(5, [])
        for error in load(rig, 1, [1, 2], writer=_native.direct_writer()):
            assert isinstance(error, errors.ProtocolError)
            assert "rank 1 has no arena that holds layer 5" in str(error)
        del arenas


def test_bytes_that_change_on_the_way_are_found() -> None:
    """The simulated bus moves bytes at once and says so late: in between they are spoiled on the device."""
    tp = 2
    rig = Rig(tp, KINDS, EXPERTS, device=lambda: _native.link_device(0, slow_ns=150_000_000))
    rig.transports = [rig.open(rank, verify_every=1) for rank in range(tp)]

    def spoil() -> None:
        time.sleep(0.05)
        rig.destinations[1][0].array[100] ^= 1

    spoiler = threading.Thread(target=spoil)
    spoiler.start()
    results = rig.load(1, 5, 1, _native.pattern_writer(7))
    spoiler.join()
    for error in results:
        assert isinstance(error, errors.ChecksumError), error
        assert (error.rank, error.layer, error.expert) == (1, 5, 0)
        assert "piece 0" in str(error)
    rig.close()


@pytest.mark.parametrize("every", [1, 3])
def test_right_bytes_pass_the_check(every: int) -> None:
    rig = Rig(2, KINDS, EXPERTS, piece_bytes=700)
    rig.transports = [rig.open(rank, verify_every=every, writer_threads=2) for rank in range(2)]
    for epoch in range(1, 20):
        rig.load_checked(epoch, 1, EXPERTS, _native.pattern_writer(epoch))
    rig.close()


def test_the_timeline_tells_what_happened() -> None:
    rig = Rig(2, KINDS, EXPERTS, piece_bytes=5000)
    rig.transports = [rig.open(rank, trace_events=1000) for rank in range(2)]
    statistics = rig.load_checked(1, 5, EXPERTS, _native.pattern_writer(7))
    pieces = statistics[0]["pieces"]
    for rank in range(2):
        events = rig.transports[rank].trace()
        assert sorted(e[4] for e in events if e[2] == 3) == list(range(pieces))  # copying
        assert all(start <= end for start, end, *_ in events)
        writing = sorted(e[4] for e in events if e[2] == 1)
        assert writing == (list(range(pieces)) if rank == 0 else [])
    rig.close()
