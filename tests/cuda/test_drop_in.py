"""The drop-in module on a CUDA device: slots that a framework owns, and may have pinned itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from layercast import _native, errors, kt
from tests.support.fake_cuda import FakeCuda
from tests.support.rig import Region

KINDS = [4096, 64, 2048, 32]
EXPERTS = 5


class Framework:
    """Two slots without a gap, a region, destinations on device 0; as a framework sets them up for one rank."""

    def __init__(self, fake: FakeCuda) -> None:
        self.control, self.slots = Region(kt.FP8_LAYERWISE_CONTROL_BYTES), Region(2 * sum(KINDS))
        kt.initialize_fp8_layerwise_control(self.control.address, self.control.nbytes, 1)
        self.owner = _native.cuda_device(fake.path, 0)
        self.destinations = [self.owner.allocate(EXPERTS * nbytes) for nbytes in KINDS]
        at, self.pointers = self.slots.address, []
        for nbytes in KINDS * 2:
            self.pointers.append(at)
            at += nbytes

    def open(self, cuda_device: int = 0, destinations: list[int] | None = None) -> kt.FP8LayerwiseTransport:
        there = self.destinations if destinations is None else destinations
        return kt.FP8LayerwiseTransport(
            *(self.control.address, self.control.nbytes, 0, 1, cuda_device),
            *(self.pointers, there, self.pointers, KINDS, EXPERTS),
        )


@pytest.fixture(autouse=True)
def chosen(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERCAST_CUDA_DRIVER", fake_cuda.path)


def write(expert: int, *kinds: list[int]) -> None:
    for number, ((address,), nbytes) in enumerate(zip(kinds, KINDS, strict=True)):
        ctypes.memset(address, 16 * number + expert, nbytes)


def load(framework: Framework, transport: kt.FP8LayerwiseTransport) -> None:
    transport.join(1, 3, EXPERTS)
    transport.run_producer(1, 3, EXPERTS, write)
    figures = transport.wait(1)
    assert figures["bytes"] == EXPERTS * sum(KINDS)
    for number, (address, nbytes) in enumerate(zip(framework.destinations, KINDS, strict=True)):
        expected = b"".join(bytes([16 * number + expert]) * nbytes for expert in range(EXPERTS))
        assert framework.owner.read(address, EXPERTS * nbytes) == expected


def test_slots_are_pinned_as_one_span_and_given_back(fake_cuda: FakeCuda) -> None:
    framework = Framework(fake_cuda)
    before = fake_cuda.number("registered_bytes"), fake_cuda.number("registrations")
    transport = framework.open()
    load(framework, transport)
    assert fake_cuda.number("pageable_copies") == 0
    # Besides, the word that streams wait for.
    assert fake_cuda.number("registrations") - before[1] == 2
    assert fake_cuda.number("registered_bytes") - before[0] == framework.slots.nbytes + 4096
    transport.close()
    assert (fake_cuda.number("registered_bytes"), fake_cuda.number("registrations")) == before


def test_slots_that_the_framework_has_pinned_stay_pinned(fake_cuda: FakeCuda) -> None:
    framework = Framework(fake_cuda)
    framework.owner.pin(framework.slots.address, framework.slots.nbytes)
    with framework.open() as transport:
        load(framework, transport)
    assert framework.owner.pinned == (framework.slots.nbytes, 0, "")
    assert fake_cuda.number("pageable_copies") == 0
    framework.owner.unpin(framework.slots.address)


def test_a_constructor_that_raises_leaves_nothing_pinned(fake_cuda: FakeCuda) -> None:
    framework = Framework(fake_cuda)
    before = fake_cuda.alive
    with pytest.raises(errors.ConfigError, match="not device memory") as caught:
        framework.open(destinations=[framework.slots.address // 16 * 16] * 4)
    assert fake_cuda.alive == before
    with pytest.raises(errors.ResourceError, match="device 9 was asked for, this process sees 4"):
        framework.open(cuda_device=9)
    del caught


def test_without_a_driver_it_is_refused(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    framework = Framework(fake_cuda)
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LAYERCAST_CUDA_DRIVER", str(tmp_path / "libcuda.so.1"))
    with pytest.raises(errors.ResourceError, match="there is no CUDA driver"):
        framework.open()
