"""Rows T23 to T30 of the traps: memory and reporting."""

from __future__ import annotations

import gc
import os
import threading
import time

import pytest
from tests.support.processes import Child
from tests.support.rig import Rig

from layercast import _native, errors

KINDS = (64, 8)


@pytest.mark.parametrize("poisoned", [False, True])
def test_trap_23_close_drains_the_device(poisoned: bool) -> None:
    """Nothing moves after close: the destination is overwritten at once and must stay so."""
    slow = {"slow_ns": 100_000_000}
    with Rig(1, (1 << 20,), 8, slots=4, device=lambda: _native.link_device(0, **slow), piece_bytes=1 << 20) as rig:
        transport = rig.transports[0]

        def fail(expert: int, views: object) -> None:
            if expert == 3:
                if not poisoned:
                    transport.close()
                raise ValueError("enough")

        transport.join(1, 0, 8)
        with pytest.raises(errors.LayercastError):
            transport.run(1, 0, 8, _native.PythonWriter.views(fail))
        transport.close()
        rig.destinations[0][0].array[:] = 0x77
        time.sleep(0.3)
        assert (rig.destinations[0][0].array == 0x77).all()


def test_trap_24_a_second_close_waits_for_the_first() -> None:
    with Rig(1, (1 << 16,), 4, slots=1) as rig:
        transport = rig.transports[0]
        transport.join(1, 0, 4)
        inside, release, order = threading.Event(), threading.Event(), []

        def writer(expert: int, views: object) -> None:
            inside.set()
            release.wait(10)

        def run() -> None:
            with pytest.raises(errors.LayercastError):
                transport.run(1, 0, 4, _native.PythonWriter.views(writer))

        def close(name: str) -> None:
            transport.close()
            order.append(name)

        threads = [threading.Thread(target=run)]
        threads[0].start()
        inside.wait(10)
        threads += [threading.Thread(target=close, args=(name,)) for name in ("first", "second")]
        for thread in threads[1:]:
            thread.start()
        time.sleep(0.2)
        assert order == []
        release.set()
        for thread in threads:
            thread.join(10)
        assert sorted(order) == ["first", "second"]


@pytest.mark.parametrize("device", [_native.host_device, lambda: _native.link_device(0)])
def test_trap_25_a_forked_childs_copy_is_inert(device) -> None:
    rig = Rig(2, KINDS, 4, piece_bytes=16, device=device)
    rig.transports = [rig.open(rank, writer_threads=2) for rank in range(2)]
    rig.load_checked(1, 0, 4, _native.pattern_writer(0))

    def child() -> object:
        raised: list[str] = []
        for call in (lambda: rig.transports[0].join(2, 0, 4), lambda: rig.transports[1].wait(1)):
            try:
                call()
            except errors.ForkError as error:
                raised.append(str(error))
        rig.transports[0].close()
        rig.transports.clear()
        gc.collect()
        return raised

    texts = Child(child).result()
    assert isinstance(texts, list) and len(texts) == 2
    assert all(f"belongs to pid {os.getpid()}" in text and "create it after fork" in text for text in texts)
    rig.load_checked(2, 0, 4, _native.pattern_writer(0))
    rig.close()


def test_trap_26_overflows_are_refused_in_the_constructor() -> None:
    rig = Rig(1, KINDS, 4)
    with pytest.raises(errors.ConfigError, match="overflow"):
        rig.open(0, kind_bytes=[2**62, 8])
    with pytest.raises(errors.ConfigError, match="overflow"):
        rig.open(0, kind_bytes=[2**63, 2**63])
    with pytest.raises(errors.ConfigError, match="kind 1: 4 experts of 8 bytes behind its address overflow"):
        rig.open(0, destinations=[rig.destinations[0][0].address, 2**64 - 16])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"kind_bytes": []}, "kind_bytes: expected at least one kind"),
        ({"kind_bytes": [64, 0]}, r"kind_bytes\[1\]: expected > 0, got 0"),
        ({"experts": 0}, "num_experts: expected > 0, got 0"),
        ({"local_slots": [4096]}, r"local_host_ptrs: expected 4 pointers \(\[slot\]\), got 1"),
        (
            {"local_slots": [4096, 0, 4096, 4096]},
            r"local_host_ptrs\[1\]: expected an address, got a null pointer",
        ),
        ({"all_slots": []}, r"all_rank_host_ptrs: expected 4 pointers \(\[slot\]\[rank\]\), got 0"),
        ({"destinations": [4096]}, "destinations: expected 2 pointers"),
        ({"destinations": [4096, 0]}, r"destinations\[1\]: expected an address, got a null pointer"),
        ({"rank": 1}, "rank: expected 0..0, got 1"),
        ({"piece_bytes": 0}, "piece_bytes: expected > 0, got 0"),
        ({"slot_bytes": 10}, "slot_bytes: expected room for a piece of 4096 bytes"),
        ({"control": 0}, "control region: expected an address"),
        ({"control_bytes": 100}, "control region: expected at least"),
    ],
)
def test_each_argument_is_checked_before_anything_starts(overrides: dict[str, object], words: str) -> None:
    rig = Rig(1, KINDS, 4)
    with pytest.raises(errors.ConfigError, match=words):
        rig.open(0, **overrides)
    with rig:  # the rank was not taken by the failed attempt
        rig.load_checked(1, 0, 4, _native.pattern_writer(0))


@pytest.mark.parametrize("fill", range(4))
def test_trap_28_a_cut_message_is_valid_text(fill: int) -> None:
    with Rig(1, KINDS, 4) as rig:

        def writer(expert: int, views: object) -> None:
            raise ValueError("x" * fill + "\N{GRINNING FACE}" * 100)

        rig.transports[0].join(1, 0, 4)
        with pytest.raises(errors.WriterError):
            rig.transports[0].run(1, 0, 4, _native.PythonWriter.views(writer))
        raw = rig.control.map[256:512].split(b"\0")[0]
        assert 240 <= len(raw) <= 255
        assert raw.decode().endswith("\N{GRINNING FACE}")


def test_trap_29_one_exception_with_the_same_attributes_on_every_rank() -> None:
    with Rig(3, KINDS, 8, piece_bytes=72) as rig:

        def writer(expert: int, views: object) -> None:
            if expert == 5:
                raise KeyError("missing tensor")

        def call(rank: int) -> None:
            rig.transports[rank].join(4, 9, 8)
            if rank == 0:
                rig.transports[0].run(4, 9, 8, _native.PythonWriter.views(writer))
            rig.transports[rank].wait(4)

        results = rig.each(call)
        seen = {
            (type(e), e.code, e.rank, e.pid, e.epoch, e.layer, e.expert, str(e))  # type: ignore[attr-defined]
            for e in results
        }
        assert len(seen) == 1
        kind, *attributes, text = seen.pop()
        assert kind is errors.WriterError
        assert attributes == [5, 0, os.getpid(), 4, 9, 5]
        assert "the writer failed at expert 5 of layer 9: KeyError: 'missing tensor'" in text
        assert isinstance(results[0].__cause__, KeyError)  # type: ignore[attr-defined]
        assert results[1].__cause__ is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("device", ["fail", "hang"])
def test_a_device_that_fails_or_hangs_poisons_with_its_rank(rank: int, device: str) -> None:
    rig = Rig(2, KINDS, 8, piece_bytes=72, timeout_ms=300)
    sick = _native.link_device(0, **{f"{device}_at": 3})
    rig.transports = [rig.open(r, device=sick if r == rank else _native.host_device()) for r in range(2)]
    results = rig.load(1, 0, 8, _native.pattern_writer(0))
    expected = errors.DeviceError if device == "fail" else errors.LayerTimeout
    assert all(isinstance(r, expected) for r in results), results
    if device == "fail":
        assert all(r.rank == rank and r.code == 4 for r in results)  # type: ignore[attr-defined]
    rig.close()
