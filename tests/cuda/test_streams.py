"""Streams of a model and the copies wait for each other; destinations that belong to other libraries."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from layercast import Group, Transport, _native, errors, open_device
from layercast.devices import Cuda
from layercast.tensors import addresses, stream_handle
from layercast.writers import pattern_writer
from tests.support.fake_cuda import FakeCuda, ModelStream
from tests.support.processes import eventually

KINDS = (4000, 24)
EXPERTS = 6


@pytest.fixture
def transport(fake_cuda: FakeCuda, tmp_path: Path) -> Iterator[Transport]:
    (tmp_path / "run").mkdir(mode=0o700)
    with (
        Group("streams", 0, 1, runtime_dir=tmp_path / "run") as group,
        Transport(
            group, KINDS, num_experts=EXPERTS, device=Cuda(0, driver=fake_cuda.path), piece_bytes=3000, slots=4
        ) as opened,
    ):
        yield opened


@pytest.fixture
def stream(fake_cuda: FakeCuda, transport: Transport) -> Iterator[ModelStream]:
    made = ModelStream(fake_cuda)
    yield made
    transport.close()
    made.close()


def kernel(body: Callable[[], object]) -> object:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: body() and None)


def wrong(transport: Transport, seed: int) -> int:
    """Experts whose bytes are not there, looked at in place: the fake device's memory is the host's."""
    return _native.count_wrong_pattern(seed, 3, 0, EXPERTS, list(KINDS), transport.destinations)[0]


def run(transport: Transport, epoch: int) -> threading.Thread:
    """Rank 0's part, on a thread of its own as a prefetcher has one."""
    thread = threading.Thread(target=lambda: transport.run(epoch, 3, EXPERTS, pattern_writer(epoch)))
    thread.start()
    return thread


def test_a_stream_waits_for_the_bytes_and_the_host_does_not(
    fake_cuda: FakeCuda, transport: Transport, stream: ModelStream
) -> None:
    seen: list[int] = []
    look = kernel(lambda: seen.append(wrong(transport, 1)))
    fake_cuda.set("hold=1")
    transport.join(1, 3, EXPERTS)
    assert transport.wait(1, stream=stream.handle) is None
    stream.call(look)
    thread = run(transport, 1)
    eventually(lambda: fake_cuda.number("cuMemcpyHtoDAsync_v2") > 0)
    assert not stream.idle and not seen
    fake_cuda.set("hold=0")
    eventually(lambda: bool(seen))
    assert seen == [0]
    thread.join(30)
    assert transport.wait(1).bytes == EXPERTS * sum(KINDS)
    waits = fake_cuda.number("cuStreamWaitValue32_v2")
    assert transport.wait(1, stream=stream.handle) is None  # a finished layer: it goes on at once,
    assert fake_cuda.number("cuStreamWaitValue32_v2") == waits  # and in an order that the driver sees
    eventually(lambda: stream.idle)


def test_the_word_counts_layers_not_epochs(transport: Transport, stream: ModelStream) -> None:
    for epoch in (1, 5, 700):
        transport.join(epoch, 3, EXPERTS)
        seen: list[int] = []
        look = kernel(lambda seen=seen, epoch=epoch: seen.append(wrong(transport, epoch)))
        transport.wait(epoch, stream=stream.handle)
        stream.call(look)
        transport.run(epoch, 3, EXPERTS, pattern_writer(epoch))
        transport.wait(epoch)
        eventually(lambda seen=seen: bool(seen))
        assert seen == [0]


def test_a_layer_without_copies_lets_streams_go(transport: Transport, stream: ModelStream) -> None:
    transport.load(1, 3, EXPERTS, pattern_writer(1))
    resident = dict.fromkeys(range(EXPERTS))
    transport.join(2, 3, EXPERTS, resident=resident)
    transport.wait(2, stream=stream.handle)
    transport.run(2, 3, EXPERTS, pattern_writer(2), resident=resident)
    transport.wait(2)
    eventually(lambda: stream.idle)


def test_a_failed_layer_lets_streams_go_and_wait_tells(transport: Transport, stream: ModelStream) -> None:
    def fail(expert: int, views: object) -> None:
        raise RuntimeError("no such expert")

    transport.join(1, 3, EXPERTS)
    transport.wait(1, stream=stream.handle)
    assert not stream.idle
    with pytest.raises(errors.WriterError):
        transport.run(1, 3, EXPERTS, fail)
    eventually(lambda: stream.idle)
    with pytest.raises(errors.WriterError):
        transport.wait(1)
    with pytest.raises(errors.WriterError):
        transport.wait(1, stream=stream.handle)


def test_close_lets_streams_go(transport: Transport, stream: ModelStream) -> None:
    transport.join(1, 3, EXPERTS)
    transport.wait(1, stream=stream.handle)
    transport.close()
    eventually(lambda: stream.idle)


def test_a_later_layer_waits_for_what_the_model_still_reads(
    fake_cuda: FakeCuda, transport: Transport, stream: ModelStream
) -> None:
    transport.load(1, 3, EXPERTS, pattern_writer(1))
    reading, may_end = threading.Event(), threading.Event()
    seen: list[int] = []

    def read() -> None:
        reading.set()
        may_end.wait(30)
        seen.append(wrong(transport, 1))

    slow = kernel(read)
    stream.call(slow)
    transport.consumed(stream.handle)
    reading.wait(30)
    transport.join(2, 3, EXPERTS)
    thread = run(transport, 2)
    eventually(lambda: fake_cuda.number("cuMemcpyHtoDAsync_v2") > 8)
    assert wrong(transport, 1) == 0  # not a byte of the next layer has come
    may_end.set()
    thread.join(30)
    transport.wait(2)
    assert seen == [0]
    assert wrong(transport, 2) == 0


def test_close_frees_nothing_that_the_model_still_reads(transport: Transport, stream: ModelStream) -> None:
    transport.load(1, 3, EXPERTS, pattern_writer(1))
    seen: list[bytes] = []
    places = transport.destinations
    late = kernel(lambda: time.sleep(0.3) or seen.append(ctypes.string_at(places[0], 16)))
    stream.call(late)
    transport.consumed(stream.handle)
    transport.close()
    assert len(seen) == 1


def test_a_fence_behind_a_wait_for_the_same_layer_is_no_deadlock(
    fake_cuda: FakeCuda, transport: Transport, stream: ModelStream
) -> None:
    """The host runs ahead: wait, kernel and fence are enqueued while the layer still comes."""
    nothing = kernel(lambda: None)
    for epoch in (1, 2, 3):
        transport.join(epoch, 3, EXPERTS)
        transport.wait(epoch, stream=stream.handle)
        stream.call(nothing)
        transport.consumed(stream.handle)
        transport.run(epoch, 3, EXPERTS, pattern_writer(epoch))
        transport.wait(epoch)
        assert wrong(transport, epoch) == 0


def test_what_cannot_be_waited_for_is_refused(
    fake_cuda: FakeCuda, transport: Transport, stream: ModelStream, tmp_path: Path
) -> None:
    with pytest.raises(errors.StateError, match="the epoch joined last, on rank 0 that is 0"):
        transport.wait(1, stream=stream.handle)
    transport.load(1, 3, EXPERTS, pattern_writer(1))
    with pytest.raises(errors.StateError, match="the epoch joined last, on rank 0 that is 1"):
        transport.wait(2, stream=stream.handle)
    elsewhere = ModelStream(fake_cuda, 1)
    for call in (lambda: transport.wait(1, stream=elsewhere.handle), lambda: transport.consumed(elsewhere.handle)):
        with pytest.raises(errors.ConfigError, match="expected one of device 0's primary context"):
            call()
    elsewhere.close()
    (tmp_path / "other").mkdir(mode=0o700)
    with Group("host", 0, 1, runtime_dir=tmp_path / "other") as group, Transport(group, KINDS, num_experts=1) as host:
        host.load(1, 3, 1, pattern_writer(1))
        for call in (lambda: host.wait(1, stream=1), lambda: host.consumed(1)):
            with pytest.raises(errors.StateError, match="device host has no streams"):
                call()


def test_without_stream_memory_operations_only_that_is_refused(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    fake_cuda.set("fail=cuMemHostGetDevicePointer_v2:1:801")
    device = open_device(Cuda(0, driver=fake_cuda.path))
    with (
        Group("old", 0, 1, runtime_dir=tmp_path / "run") as group,
        Transport(group, KINDS, num_experts=EXPERTS, device=device) as transport,
    ):
        transport.join(1, 3, EXPERTS)
        with pytest.raises(errors.StateError, match="not all enqueued: cuMemHostGetDevicePointer failed.*after run"):
            transport.wait(1, stream=0)
        transport.run(1, 3, EXPERTS, pattern_writer(1))
        assert transport.wait(1, stream=0) is None
        transport.wait(1)
    del device


def test_stream_handles() -> None:
    assert stream_handle(7) == 7
    assert stream_handle(SimpleNamespace(cuda_stream=8)) == 8
    assert stream_handle(SimpleNamespace(ptr=9)) == 9
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 10))) == 10
    with pytest.raises(errors.ConfigError, match="got str"):
        stream_handle("no stream")


class Tensor:
    """What CuPy's and torch's tensors say of themselves."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (address, False), "version": 3, "strides": strides,
        }  # fmt: skip


def test_tensors_as_destinations() -> None:
    array = np.zeros((4, 8), np.float32)
    assert addresses([5, Tensor(64, (4, 8)), array], [1, 128, 128]) == (5, 64, array.ctypes.data)
    assert addresses([Tensor(64, (4, 8), (32, 4))], [128]) == (64,)
    for what, words in (
        (Tensor(64, (4, 8)), "= 129 bytes, this tensor has 128"),
        (array, "= 129 bytes, this tensor has 128"),
        (Tensor(64, (4, 8), (64, 4)), "contiguous"),
        (array[:, ::2], "contiguous"),
        ("text", "expected an address or a tensor, got str"),
    ):
        with pytest.raises(errors.ConfigError, match=words):
            addresses([what], [129])


def test_a_transport_fills_tensors_of_others(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    device = open_device(Cuda(0, driver=fake_cuda.path))
    tensors = [Tensor(device.allocate(EXPERTS * nbytes), (EXPERTS, nbytes // 4)) for nbytes in KINDS]
    with Group("tensors", 0, 1, runtime_dir=tmp_path / "run") as group:
        with Transport(group, KINDS, num_experts=EXPERTS, device=device, destinations=tensors) as transport:
            assert transport.destinations == [t.__cuda_array_interface__["data"][0] for t in tensors]
            transport.load(1, 3, EXPERTS, pattern_writer(4))
            assert wrong(transport, 4) == 0
        with pytest.raises(errors.ConfigError, match="not device memory"):
            Transport(group, KINDS, num_experts=1, device=device, destinations=[np.zeros(n, np.uint8) for n in KINDS])
    del device
