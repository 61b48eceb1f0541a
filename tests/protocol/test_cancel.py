"""A layer that is given up: every rank hears at once, nothing moves afterwards, and the group goes on."""

from __future__ import annotations

import random
import threading
import time

import pytest
from tests.support.rig import Rig

from layercast import _native, errors

KINDS = (3000, 8)
EXPERTS = 10
DEVICES = [_native.host_device, lambda: _native.link_device(2e8)]


class Stuck:
    """A writer that stops at an expert until it is let go."""

    def __init__(self, expert: int) -> None:
        self.expert = expert
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.native = _native.PythonWriter.views(self)

    def __call__(self, expert: int, views: object) -> None:
        if expert == self.expert:
            self.reached.set()
            assert self.go_on.wait(30)


def load(rig: Rig, rank: int, epoch: int, writer: _native.Writer) -> object:
    transport = rig.transports[rank]
    transport.join(epoch, 3, EXPERTS)
    if rank == 0:
        transport.run(epoch, 3, EXPERTS, writer)
    return transport.wait(epoch)


def check_next(rig: Rig, epoch: int) -> None:
    rig.load_checked(epoch, epoch, EXPERTS, _native.pattern_writer(epoch))
    assert rig.wrong(epoch, epoch, EXPERTS) == [0] * rig.tp


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("canceller", [0, 2])
def test_every_rank_raises_and_the_next_layer_works(canceller: int, device) -> None:
    with Rig(3, KINDS, EXPERTS, device=device, piece_bytes=2000) as rig:
        check_next(rig, 1)
        writer = Stuck(4)
        heard: dict[int, float] = {}

        def call(rank: int) -> object:
            try:
                return load(rig, rank, 2, writer.native)
            finally:
                heard[rank] = time.monotonic()

        def cancel() -> None:
            assert writer.reached.wait(30)
            started.append(time.monotonic())
            assert rig.transports[canceller].cancel(2)
            time.sleep(0.3)
            writer.go_on.set()

        started: list[float] = []
        thread = threading.Thread(target=cancel)
        thread.start()
        results = rig.each(call)
        thread.join()
        for error in results:
            assert isinstance(error, errors.Cancelled), error
            assert (error.rank, error.epoch, error.layer) == (canceller, 2, 3)
        # The writer is still inside its call: rank 0 waits for it, nobody else does.
        assert all(heard[rank] - started[0] < 0.25 for rank in (1, 2))
        with pytest.raises(errors.Cancelled):
            rig.transports[1].wait(2)
        assert not rig.transports[1].failed
        check_next(rig, 3)


def test_a_finished_layer_cannot_be_given_up() -> None:
    with Rig(2, KINDS, EXPERTS) as rig:
        check_next(rig, 1)
        assert not rig.transports[1].cancel(1)
        check_next(rig, 2)
        assert not rig.transports[0].cancel(1)


def test_a_layer_can_be_given_up_before_rank_0_begins_it() -> None:
    with Rig(2, KINDS, EXPERTS) as rig:
        assert rig.transports[1].cancel(1)
        results = rig.load(1, 3, EXPERTS, _native.pattern_writer(1))
        assert [type(error) for error in results] == [errors.Cancelled] * 2
        check_next(rig, 2)


def test_a_rank_that_never_joined_the_layer_goes_on_to_the_next() -> None:
    with Rig(3, KINDS, EXPERTS) as rig:
        writer = Stuck(0)

        def call(rank: int) -> object:
            if rank == 2:  # its request was aborted before it came here
                assert writer.reached.wait(30)
                rig.transports[2].cancel(1)
                writer.go_on.set()
                return None
            return load(rig, rank, 1, writer.native)

        results = rig.each(call)
        assert [type(r) for r in results] == [errors.Cancelled, errors.Cancelled, type(None)]
        check_next(rig, 2)


def test_a_rank_need_not_wait_for_what_it_gave_up() -> None:
    with Rig(2, KINDS, EXPERTS, device=lambda: _native.link_device(0, slow_ns=50_000_000)) as rig:

        def call(rank: int) -> object:
            transport = rig.transports[rank]
            transport.join(1, 3, EXPERTS)
            if rank == 1:
                transport.cancel(1)
            else:
                with pytest.raises(errors.Cancelled):
                    transport.run(1, 3, EXPERTS, _native.pattern_writer(1))
            return None

        assert rig.each(call) == [None, None]
        check_next(rig, 2)


def test_no_late_byte_lands_in_the_device_layer() -> None:
    """When `wait` has raised, the rank may hand its device layer on."""
    with Rig(2, KINDS, EXPERTS, device=lambda: _native.link_device(3e6), slots=8, piece_bytes=3008) as rig:
        done = threading.Event()

        def cancel() -> None:
            time.sleep(0.004)
            rig.transports[1].cancel(1)

        def call(rank: int) -> object:
            try:
                load(rig, rank, 1, _native.pattern_writer(1))
            except errors.Cancelled:
                for region in rig.destinations[rank]:
                    region.array[:] = 0x55
                time.sleep(0.05)
                return all(
                    (region.array[: EXPERTS * k] == 0x55).all()
                    for region, k in zip(rig.destinations[rank], KINDS, strict=True)
                )
            finally:
                done.set()
            return None

        thread = threading.Thread(target=cancel)
        thread.start()
        assert rig.each(call) == [True, True]
        thread.join()
        check_next(rig, 2)


def test_outcomes_agree_whenever_it_comes() -> None:
    """Random cancels: a layer is done on every rank, or given up on every rank; the next one is right."""
    rng = random.Random(5)
    counts = {"done": 0, "cancelled": 0}
    with Rig(3, KINDS, EXPERTS, piece_bytes=500, slots=3) as rig:
        for epoch in range(1, 200):
            delay, who = rng.random() * 0.0006, rng.randrange(3)

            def cancel(delay: float = delay, who: int = who, epoch: int = epoch) -> None:
                time.sleep(delay)
                rig.transports[who].cancel(epoch)

            thread = threading.Thread(target=cancel)
            thread.start()
            results = rig.load(epoch, epoch, EXPERTS, _native.pattern_writer(epoch))
            thread.join()
            kinds = {type(result) for result in results}
            assert kinds in ({dict}, {errors.Cancelled}), results
            if kinds == {dict}:
                counts["done"] += 1
                assert rig.wrong(epoch, epoch, EXPERTS) == [0] * 3
            else:
                counts["cancelled"] += 1
    assert counts["cancelled"] > 5, counts


def test_version_2_ranks_of_others_make_it_a_refusal() -> None:
    rig = Rig(2, KINDS, EXPERTS, version=2)
    rig.transports = [rig.open(0)]  # rank 1 never said who it is
    with pytest.raises(errors.StateError, match="not every rank"):
        rig.transports[0].cancel(1)
    rig.close()
