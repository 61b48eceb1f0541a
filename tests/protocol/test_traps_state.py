"""Rows T11 to T21 of the traps, as far as no recovery is needed: state."""

from __future__ import annotations

import os
import threading
import time

import pytest
from tests.support.processes import Child
from tests.support.rig import Rig

from layercast import _native, errors, kt

KINDS = (64, 8)


def pattern() -> _native.Writer:
    return _native.pattern_writer(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0, 4), "epoch: expected 1.."),
        ((1, -1, 4), "layer_id: expected >= 0, got -1"),
        ((1, 0, 0), "expert_count: expected 1..4, got 0"),
        ((1, 0, 5), "expert_count: expected 1..4, got 5"),
    ],
)
def test_trap_11_a_local_argument_error_leaves_the_group_healthy(arguments: tuple[int, int, int], words: str) -> None:
    with Rig(2, KINDS, 4) as rig:
        for rank in range(2):
            with pytest.raises(errors.ConfigError, match=words):
                rig.transports[rank].join(*arguments)
        rig.load_checked(1, 0, 4, pattern())


def test_trap_11_arguments_that_differ_raise_everywhere_with_both_values() -> None:
    with Rig(2, KINDS, 4) as rig:

        def call(rank: int) -> None:
            rig.transports[rank].join(1, 3 + rank, 4 - rank)
            if rank == 0:
                rig.transports[0].run(1, 3, 4, pattern())

        first, second = rig.each(call)
        assert isinstance(first, errors.ProtocolError) and isinstance(second, errors.ProtocolError)
        assert str(first) == str(second)
        assert "rank 0 joined layer 3 with 4 experts, rank 1 layer 4 with 3" in str(first)


def test_trap_12_a_newer_epoch_than_rank_0_is_refused_at_once() -> None:
    with Rig(2, KINDS, 4) as rig:
        rig.load_checked(1, 0, 4, pattern())

        def call(rank: int) -> None:
            rig.transports[rank].join(2 + 3 * rank, 0, 4)
            if rank == 0:
                rig.transports[0].run(2, 0, 4, pattern())

        results = rig.each(call)
        assert all(isinstance(r, errors.ProtocolError) for r in results), results
        assert "rank 1 joined epoch 5, rank 0 is in epoch 2" in str(results[0])


def test_trap_13_join_before_wait_is_refused_at_once() -> None:
    with Rig(1, KINDS, 4) as rig:
        transport = rig.transports[0]
        transport.join(1, 0, 4)
        with pytest.raises(errors.StateError, match="epoch 1 has not been waited for"):
            transport.join(2, 0, 4)
        transport.run(1, 0, 4, pattern())
        with pytest.raises(errors.StateError, match="epoch 1 has not been waited for"):
            transport.join(2, 0, 4)
        transport.wait(1)
        rig.load_checked(2, 0, 4, pattern())


def test_trap_14_wait_without_join_is_refused_locally() -> None:
    with Rig(2, KINDS, 4) as rig:
        for epoch in (0, 1, 7):
            with pytest.raises(errors.StateError, match="never joined"):
                rig.transports[1].wait(epoch)
        rig.load_checked(1, 0, 4, pattern())
        with pytest.raises(errors.StateError, match="never joined this epoch; its last is 1"):
            rig.transports[1].wait(2)
        rig.load_checked(2, 0, 4, pattern())


def test_trap_15_wait_again_gives_the_kept_figures() -> None:
    with Rig(1, KINDS, 4) as rig:
        [first] = rig.load_checked(1, 0, 4, pattern())
        assert rig.transports[0].wait(1) == first
        rig.transports[0].join(2, 1, 3)
        assert rig.transports[0].wait(1) == first
        rig.transports[0].run(2, 1, 3, pattern())
        second = rig.transports[0].wait(2)
        assert (second["epoch"], second["layer_id"], second["expert_count"]) == (2, 1, 3)
        with pytest.raises(errors.StateError, match="never joined"):
            rig.transports[0].wait(1)


def test_trap_16_run_twice_is_refused_before_the_writer_is_called() -> None:
    calls: list[int] = []
    with Rig(1, KINDS, 4) as rig:
        writer = _native.PythonWriter.views(lambda expert, views: calls.append(expert))
        with pytest.raises(errors.StateError, match="must join this epoch first"):
            rig.transports[0].run(1, 0, 4, writer)
        rig.transports[0].join(1, 0, 4)
        with pytest.raises(errors.ConfigError, match="joined layer 0 with 4 experts, run was given layer 1 with 4"):
            rig.transports[0].run(1, 1, 4, writer)
        rig.transports[0].run(1, 0, 4, writer)
        assert calls == [0, 1, 2, 3]
        with pytest.raises(errors.StateError, match="has been run already"):
            rig.transports[0].run(1, 0, 4, writer)
        rig.transports[0].wait(1)
        with pytest.raises(errors.StateError, match="must join"):
            rig.transports[0].run(1, 0, 4, writer)
        assert calls == [0, 1, 2, 3]


def test_run_is_rank_0s_and_wait_needs_it() -> None:
    with Rig(2, KINDS, 4) as rig:
        with pytest.raises(errors.StateError, match="rank 0's call"):
            rig.transports[1].run(1, 0, 4, pattern())
        rig.transports[0].join(1, 0, 4)
        with pytest.raises(errors.StateError, match="must run this epoch first"):
            rig.transports[0].wait(1)


def test_trap_17_a_second_process_with_the_same_rank_is_refused() -> None:
    rig = Rig(2, KINDS, 4).open_all()
    second = Child(lambda: rig.open(1)).result()
    assert isinstance(second, errors.StateError)
    assert f"rank 1 is taken by pid {os.getpid()}" in str(second)
    with pytest.raises(errors.StateError, match="rank 0 is taken by pid"):
        rig.open(0)
    rig.load_checked(1, 0, 4, pattern())
    rig.close()


def test_trap_18_an_open_group_cannot_be_initialised_again() -> None:
    rig = Rig(2, KINDS, 4, version=2).open_all()
    with pytest.raises(errors.StateError, match="rank 0 .* still has it open"):
        kt.initialize_fp8_layerwise_control(rig.control.address, 8192, 2)
    rig.transports[0].close()
    with pytest.raises(errors.StateError, match="rank 1 .* still has it open"):
        kt.initialize_fp8_layerwise_control(rig.control.address, 8192, 2)
    rig.close()
    kt.initialize_fp8_layerwise_control(rig.control.address, 8192, 2)
    rig.open_all()
    rig.load_checked(1, 0, 4, pattern())
    rig.close()


def test_trap_18_an_old_transport_raises_after_a_new_generation() -> None:
    """A region initialised over by force: what was open raises and touches nothing."""
    rig = Rig(1, KINDS, 4, version=2)
    old = rig.open(0)
    time.sleep(0.2)
    rig.control.map[7000:8192] = bytes(1192)
    peers = 5056 + 3 * 64 + 16 * 64
    rig.control.map[peers : peers + 512] = bytes(512)
    kt.initialize_fp8_layerwise_control(rig.control.address, 8192, 1)
    with pytest.raises(errors.Superseded, match="generation 2, this transport belongs to 1"):
        old.join(1, 0, 4)
    old.close()
    rig.transports = [rig.open(0)]
    time.sleep(0.2)  # its consumer sleeps, as the old one did when it was rung out of its bell
    rig.load_checked(1, 0, 4, pattern())
    rig.close()


def test_trap_20_the_last_epoch_is_refused_with_the_words() -> None:
    with Rig(1, KINDS, 4) as rig:
        rig.load_checked(_native.MAX_EPOCH, 0, 4, pattern())
        with pytest.raises(errors.ConfigError, match="epoch: expected more than 9223372036854775807"):
            rig.transports[0].join(_native.MAX_EPOCH, 0, 4)
        with pytest.raises(errors.ConfigError, match=f"epoch: expected 1..{_native.MAX_EPOCH}"):
            rig.transports[0].join(_native.MAX_EPOCH + 1, 0, 4)


def test_trap_21_the_writer_is_not_called_after_a_poison() -> None:
    calls: list[int] = []
    with Rig(2, KINDS, 8, slots=8, piece_bytes=72) as rig:
        closed, joined = threading.Event(), threading.Event()

        def writer(expert: int, views: object) -> None:
            calls.append(expert)
            if expert == 2:
                joined.wait(10)
                rig.transports[1].close()
                closed.set()

        def call(rank: int) -> None:
            rig.transports[rank].join(1, 0, 8)
            if rank == 0:
                rig.transports[0].run(1, 0, 8, _native.PythonWriter.views(writer))
            joined.set()
            rig.transports[rank].wait(1)

        results = rig.each(call)
        assert closed.is_set() and calls == [0, 1, 2]
        assert isinstance(results[0], errors.ClosedWhileActive)
        assert "rank 1 closed its transport during epoch 1" in str(results[0])
