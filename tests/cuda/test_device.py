"""The CUDA device on the fake driver: memory, errors, loss, forks. See tests/contract for the bytes."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import re
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from layercast import Arena, Checkpoint, CheckpointSource, Group, Transport, _native, errors
from layercast.checkpoint import write_demo_checkpoint
from layercast.devices import Cuda, check_device, open_device, parse_device
from layercast.writers import pattern_writer
from tests.support.cuda_rig import CudaRig
from tests.support.fake_cuda import FakeCuda
from tests.support.processes import Child, eventually

KINDS = (4000, 24)
EXPERTS = 6
TABLE = Path(__file__).parents[2] / "native" / "devices" / "cuda_functions.h"
FUNCTIONS = re.findall(r"\bX\((cu\w+),", TABLE.read_text())


def rig(fake: FakeCuda, tp: int = 2, **options: object) -> CudaRig:
    made: dict[str, object] = {"slots": 4, "piece_bytes": 3000, **options}
    return CudaRig(tp, KINDS, EXPERTS, device=lambda rank: _native.cuda_device(fake.path, rank), **made)  # type: ignore[arg-type]


class Memory:
    """Host memory on pages of its own."""

    def __init__(self, nbytes: int) -> None:
        self.map = mmap.mmap(-1, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.nbytes = nbytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def chosen(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The fake as the driver of this process and its children."""
    monkeypatch.setenv("LAYERCAST_CUDA_DRIVER", fake_cuda.path)
    yield fake_cuda


def test_a_destination_must_be_this_devices_aligned_and_large_enough(fake_cuda: FakeCuda) -> None:
    device, other = _native.cuda_device(fake_cuda.path, 1), _native.cuda_device(fake_cuda.path, 0)
    there, elsewhere, here = device.allocate(4096), other.allocate(4096), Memory(4096)
    device.adopt(there, 4096)
    device.adopt(there + 16, 4080)
    with pytest.raises(errors.ConfigError, match=r"room for 4081 bytes.*4096 bytes from 0x\w+ on\) ends after 4080"):
        device.adopt(there + 16, 4081)
    with pytest.raises(errors.ConfigError, match="multiple of 16"):
        device.adopt(there + 8, 16)
    with pytest.raises(errors.ConfigError, match="memory of device 1, this is device 0's"):
        device.adopt(elsewhere, 16)
    with pytest.raises(errors.ConfigError, match="not device memory"):
        device.adopt(here.address, 16)


def test_host_memory_is_registered_exactly_in_chunks_and_given_back(fake_cuda: FakeCuda) -> None:
    device = _native.cuda_device(fake_cuda.path, 0)
    before = fake_cuda.number("registered_bytes"), fake_cuda.number("registrations")
    memory = Memory((600 << 20) + 4096)
    device.pin(memory.address, memory.nbytes)
    assert fake_cuda.number("registered_bytes") - before[0] == memory.nbytes
    assert fake_cuda.number("registrations") - before[1] == 3
    assert device.pinned == (memory.nbytes, 0, "")
    device.unpin(memory.address)
    assert fake_cuda.number("registered_bytes") == before[0]
    assert device.pinned == (0, 0, "")


def test_a_copy_never_crosses_the_border_of_a_registration(fake_cuda: FakeCuda) -> None:
    """Two arenas next to each other, one copy over both."""
    device = _native.cuda_device(fake_cuda.path, 0)
    memory = Memory(3 * 4096)
    memory.map[:] = bytes(range(256)) * 48
    device.pin(memory.address, 4096)
    device.pin(memory.address + 4096, 4096)
    there = device.allocate(memory.nbytes)
    before = fake_cuda.number("cuMemcpyHtoDAsync_v2")
    _native.measure_copies(device, memory.address, there, memory.nbytes, memory.nbytes, 1)
    assert fake_cuda.number("cuMemcpyHtoDAsync_v2") - before == 3
    assert device.read(there, memory.nbytes) == memory.map[:]
    device.unpin(memory.address)
    device.unpin(memory.address + 4096)


def test_memory_that_somebody_else_registered_stays_theirs(fake_cuda: FakeCuda) -> None:
    first, second = (_native.cuda_device(fake_cuda.path, 0) for _ in range(2))
    memory = Memory(8192)
    first.pin(memory.address, memory.nbytes)
    registered = fake_cuda.number("registrations")
    second.pin(memory.address, memory.nbytes)
    assert second.pinned == (memory.nbytes, 0, "")
    second.unpin(memory.address)
    assert fake_cuda.number("registrations") == registered
    first.unpin(memory.address)


def test_case_19_strict_pinning_fails_on_the_second_chunk_and_gives_the_first_back(fake_cuda: FakeCuda) -> None:
    device = _native.cuda_device(fake_cuda.path, 0)
    registered = fake_cuda.number("registrations")
    memory = Memory(512 << 20)
    fake_cuda.set("fail=cuMemHostRegister_v2:2:2")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    words = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
    with pytest.raises(errors.ResourceError) as caught:
        device.pin(memory.address, memory.nbytes)
    text = str(caught.value)
    assert f"{memory.nbytes} bytes of host memory could not be pinned, {256 << 20} of them could" in text
    assert "cuMemHostRegister failed: CUDA_ERROR_OUT_OF_MEMORY (2)" in text
    assert f"(memlock) is {words}" in text
    assert fake_cuda.number("registrations") == registered
    assert device.pinned == (0, 0, "")


def test_case_19_a_small_memlock_limit_is_named(fake_cuda: FakeCuda) -> None:
    def body() -> str:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
        fake = FakeCuda(Path(fake_cuda.path))
        device = _native.cuda_device(fake.path, 0)
        fake.set("fail=cuMemHostRegister_v2:1:2")
        memory = Memory(1 << 20)
        try:
            device.pin(memory.address, memory.nbytes)
        except errors.ResourceError as error:
            return str(error)
        return "no error"

    assert "(memlock) is 65536 bytes" in str(_spawned(body, fake_cuda))


def _spawned(body: object, fake: FakeCuda) -> object:
    """In a child that inherits no initialised driver: a fork of a process that has used it could not."""
    fresh = Path(fake.path).with_name(f"libfake_cuda_{os.getpid()}.so")
    fresh.write_bytes(Path(fake.path).read_bytes())
    old, fake.path = fake.path, str(fresh)
    try:
        return Child(body).result()  # type: ignore[arg-type]
    finally:
        fake.path = old
        fresh.unlink()


def test_case_19_permissive_pinning_goes_on_with_one_warning(
    chosen: FakeCuda, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the statistics tell; the bytes arrive all the same."""
    device = open_device("cuda,pin=permissive")
    with Group("case19", 0, 1, runtime_dir=folder) as group, caplog.at_level(logging.WARNING, "layercast"):
        chosen.set("fail=cuMemHostRegister_v2:1:2")
        with Transport(group, KINDS, num_experts=EXPERTS, device=device, piece_bytes=3000, slots=4) as transport:
            for epoch in (1, 2):
                figures = transport.load(epoch, 3, EXPERTS, pattern_writer(epoch))
                views = transport.host_views()
                addresses = [view.ctypes.data for view in views]
                assert _native.count_wrong_pattern(epoch, 3, 0, EXPERTS, list(KINDS), addresses) == (0, -1)
            assert (figures.pinned_bytes, figures.unpinned_bytes) == (0, 4 * 4096)
            assert chosen.number("pageable_copies") > 0
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "slots of rank 0: 16384 bytes are copied from unpinned memory" in warnings[0]
    del device


def test_pinned_bytes_are_in_the_statistics(chosen: FakeCuda, folder: Path) -> None:
    write_demo_checkpoint(folder.parent / "model")
    source = CheckpointSource(Checkpoint.open(folder.parent / "model"))
    layer = source.layers[0]
    device = open_device("cuda")
    with (
        Group("pinned", 0, 1, runtime_dir=folder) as group,
        Arena(source, 0, 1, layers=[layer], device=device) as arena,
        Transport(
            group, source.layout(1), num_experts=source.num_experts, device=device, arena=arena, piece_bytes=1 << 20
        ) as transport,
    ):
        figures = transport.load(1, layer, source.experts(layer))
        assert figures.direct and figures.unpinned_bytes == 0
        assert figures.pinned_bytes == arena.nbytes + transport.slots * transport._sessions[0].settings.slot_bytes
        assert chosen.number("pageable_copies") == 0
        assert source.wrong_experts(layer, 0, 1, transport.host_views()) == []
    del device


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_failing_function_is_named_wherever_it_fails(chosen: FakeCuda, folder: Path, function: str) -> None:
    """Each function, at its first call: the words, and nothing left behind."""
    if function in ("cuGetErrorName", "cuGetErrorString"):
        pytest.skip("these only make words")
    unused = {
        "cuStreamSynchronize", "cuMemGetInfo_v2", "cuStreamGetCtx", "cuStreamWaitValue32_v2",
        "cuPointerGetAttributes", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemcpyBatchAsync_v2",
    }  # fmt: skip
    quiet = {
        "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2", "cuStreamDestroy_v2", "cuEventDestroy_v2",
        "cuMemFree_v2", "cuMemHostUnregister", "cuStreamQuery", "cuMemHostGetDevicePointer_v2",
    }  # fmt: skip
    child = _spawned(lambda: _first_failure(chosen, folder, function), chosen)
    assert isinstance(child, str), child
    plain = function.removesuffix("_v2")
    if function in unused | quiet:
        assert child == "ran"
    else:
        assert f"{plain} " in child and "CUDA_ERROR_UNKNOWN (999)" in child, child


def _first_failure(fake: FakeCuda, folder: Path, function: str) -> str:
    os.environ["LAYERCAST_CUDA_DRIVER"] = fake.path
    fresh = FakeCuda(Path(fake.path))
    nth = 2 if function == "cuMemHostRegister_v2" else 1  # the first is the word's that streams wait for
    fresh.set("latency_ns=300000", f"fail={function}:{nth}:999")
    try:
        with (
            Group("each", 0, 1, runtime_dir=folder) as group,
            Transport(group, KINDS, num_experts=EXPERTS, device="cuda", piece_bytes=3000) as transport,
        ):
            transport.load(1, 1, EXPERTS, pattern_writer(1))
    except errors.LayercastError as error:
        return str(error)
    assert not fresh.violations, fresh.violations
    return "ran"


def test_a_failed_copy_poisons_with_code_4_on_every_rank(fake_cuda: FakeCuda) -> None:
    with rig(fake_cuda, 3) as group:
        group.load_checked(1, 0, EXPERTS, pattern_writer(1))
        fake_cuda.set("fail=cuMemcpyHtoDAsync_v2:4:1")
        results = group.load(2, 0, EXPERTS, pattern_writer(2))
        for result in results:
            assert isinstance(result, errors.DeviceError), result
            assert result.code == errors.Code.DEVICE_COPY == 4
            assert "cuMemcpyHtoDAsync of " in str(result) and "CUDA_ERROR_INVALID_VALUE (1)" in str(result)
            assert re.search(r"cuda device \d \(fake GPU\)", str(result))
        assert len({str(result) for result in results}) == 1


def test_a_device_that_falls_off_poisons_every_rank(fake_cuda: FakeCuda) -> None:
    """A sticky error while copies are in flight: no bell rings any more, and every later call fails the same way."""

    def body() -> list[tuple[int, str]]:
        fake = FakeCuda(Path(fake_cuda.path))
        with rig(fake_cuda, 2, timeout_ms=60_000) as group:
            group.load_checked(1, 0, EXPERTS, pattern_writer(1))
            fake.set("latency_ns=2000000", "lost_at=5")
            results = group.load(2, 0, EXPERTS, pattern_writer(2))
        return [(error.code, str(error)) for error in results]  # type: ignore[attr-defined]

    for code, text in _spawned(body, fake_cuda):  # type: ignore[attr-defined]
        assert code == 4 and "cuEventQuery of a copy" in text and "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in text


def test_a_process_with_a_lost_device_can_end(fake_cuda: FakeCuda) -> None:
    def body() -> str:
        fake = FakeCuda(Path(fake_cuda.path))
        group = rig(fake_cuda, 1).open_all()
        fake.set("lost_at=3")
        [result] = group.load(1, 0, EXPERTS, pattern_writer(1))
        group.close()
        del group
        return type(result).__name__

    assert _spawned(body, fake_cuda) == "DeviceError"


def test_a_copy_that_never_ends_leaves_its_memory_registered(fake_cuda: FakeCuda) -> None:
    """Nothing that it may still touch is given back, and close comes to an end."""

    def body() -> tuple[str, int, int]:
        fake = FakeCuda(Path(fake_cuda.path))
        group = CudaRig(
            1, KINDS, EXPERTS, timeout_ms=300, device=lambda r: _native.cuda_device(fake_cuda.path, r, patience_ms=200)
        ).open_all()
        fake.set("hang_at=3")
        [result] = group.load(1, 0, EXPERTS, pattern_writer(1))
        group.close()
        return type(result).__name__, fake.number("cuMemHostUnregister"), fake.number("cuMemFree_v2")

    assert _spawned(body, fake_cuda) == ("LayerTimeout", 0, 0)


def test_after_a_fork_the_child_is_refused(fake_cuda: FakeCuda) -> None:
    """Its calls raise at once with advice; its exit changes nothing for the parent."""
    with rig(fake_cuda, 1) as group:
        device = group.devices[0]
        there = group.destinations[0][0].address

        def body() -> list[str]:
            said = []
            for call in (
                lambda: device.read(there, 16),
                lambda: device.allocate(16),
                lambda: device.pin(there, 16),
                lambda: group.transports[0].join(1, 0, 1),
                lambda: _native.cuda_device(fake_cuda.path, 0),
            ):
                with pytest.raises(errors.ForkError) as caught:
                    call()
                said.append(str(caught.value))
            return said

        said = Child(body).result()
        assert all("fork" in text for text in said), said  # type: ignore[attr-defined]
        assert "start ranks with spawn" in said[-1]  # type: ignore[index]
        group.load_checked(1, 0, EXPERTS, pattern_writer(1))
        assert group.wrong(1, 0, EXPERTS) == [0]


def test_after_a_failed_copy_the_group_recovers_on_the_same_device(chosen: FakeCuda, folder: Path) -> None:
    """Destinations and pinned slots stay as they are."""
    with (
        Group("again", 0, 1, runtime_dir=folder) as group,
        Transport(group, KINDS, num_experts=EXPERTS, device="cuda", piece_bytes=3000) as transport,
    ):
        before, destinations = chosen.alive, transport.destinations
        chosen.set("fail=cuMemcpyHtoDAsync_v2:2:1")
        with pytest.raises(errors.DeviceError) as caught:
            transport.load(1, 1, EXPERTS, pattern_writer(1))
        assert caught.value.code == 4 and caught.value.expert >= 0
        transport.recover()
        transport.load(1, 1, EXPERTS, pattern_writer(2))
        assert transport.destinations == destinations
        views = transport.host_views()
        addresses = [view.ctypes.data for view in views]
        assert _native.count_wrong_pattern(2, 1, 0, EXPERTS, list(KINDS), addresses) == (0, -1)
        now = chosen.alive
        assert {**now, "events": 0} == {**before, "events": 0}


def test_slots_are_given_back_after_a_recovery_on_every_rank(fake_cuda: FakeCuda, folder: Path) -> None:
    def body(rank: int) -> tuple[int, int]:
        with Group("back", rank, 2, runtime_dir=folder) as group:
            device = _native.cuda_device(fake_cuda.path, rank)
            with Transport(group, KINDS, num_experts=EXPERTS, device=device, piece_bytes=3000) as transport:
                group.barrier("all are there")
                with pytest.raises(errors.WriterError):
                    transport.load(1, 1, EXPERTS, lambda expert, views: 1 / 0)
                transport.recover()
                transport.load(1, 1, EXPERTS, pattern_writer(2))
                during = device.pinned[0]
            after = device.pinned[0]
            device.close()
        return during, after

    def both() -> list[object]:
        return [child.result() for child in [Child(lambda rank=rank: body(rank)) for rank in range(2)]]

    for during, after in _spawned(both, fake_cuda):  # type: ignore[attr-defined]
        assert during > 0 and after == 0


def test_a_lost_device_cannot_be_recovered_and_says_so(fake_cuda: FakeCuda, folder: Path) -> None:
    def body() -> str:
        fake = FakeCuda(Path(fake_cuda.path))
        with (
            Group("lost", 0, 1, runtime_dir=folder) as group,
            Transport(group, KINDS, num_experts=EXPERTS, device=Cuda(0, driver=fake.path)) as transport,
        ):
            fake.set("lost_at=1")
            with pytest.raises(errors.DeviceError):
                transport.load(1, 1, EXPERTS, pattern_writer(1))
            with pytest.raises(errors.DeviceError) as caught:
                transport.recover()
            return str(caught.value)

    assert "cuPointerGetAttributes of destination" in str(_spawned(body, fake_cuda))


def test_residents_are_copied_inside_the_device_and_arrivals_are_verified(chosen: FakeCuda, folder: Path) -> None:
    with (
        Group("resident", 0, 1, runtime_dir=folder) as group,
        Transport(group, KINDS, num_experts=EXPERTS, device="cuda", piece_bytes=3000, verify="full") as transport,
    ):
        transport.load(1, 1, EXPERTS, pattern_writer(1))
        places = list(zip(transport.destinations, KINDS, strict=True))
        last = [address + 5 * nbytes for address, nbytes in places]
        old = [transport.device.read(address, nbytes) for address, nbytes in zip(last, KINDS, strict=True)]
        figures = transport.load(2, 1, EXPERTS, pattern_writer(2), resident={0: last})
        assert (figures.bytes, figures.resident_bytes) == ((EXPERTS - 1) * sum(KINDS), sum(KINDS))
        assert chosen.number("cuMemcpyDtoDAsync_v2") == len(KINDS)
        assert chosen.number("cuMemcpyDtoHAsync_v2") > 2 * EXPERTS  # what was verified
        assert [transport.device.read(address, nbytes) for address, nbytes in places] == old
        wrong, _ = _native.count_wrong_pattern(2, 1, 0, EXPERTS, list(KINDS), transport.destinations)
        assert wrong == 1  # all but the resident one


def test_who_waits_for_copies_sleeps(fake_cuda: FakeCuda) -> None:
    """While copies are under way for long, the copying thread sleeps: it looks 20 times a second, no more."""
    with rig(fake_cuda, 1) as group:
        fake_cuda.set("hold=1")
        group.transports[0].join(1, 0, EXPERTS)
        thread = threading.Thread(target=lambda: group.transports[0].run(1, 0, EXPERTS, pattern_writer(1)))
        thread.start()
        eventually(lambda: fake_cuda.number("cuLaunchHostFunc") > 0)
        time.sleep(0.2)
        asked = fake_cuda.number("cuEventQuery")
        time.sleep(1.0)
        assert fake_cuda.number("cuEventQuery") - asked < 200  # a spinning thread asks a million times
        fake_cuda.set("hold=0")
        thread.join(30)
        group.transports[0].wait(1)
        assert group.wrong(1, 0, EXPERTS) == [0]


def test_bells_are_asked_for_and_never_stall_the_copies(fake_cuda: FakeCuda) -> None:
    """Fewer calls back than pieces, none in the stream of the copies."""
    with rig(fake_cuda, 1, slots=8, piece_bytes=256) as group:
        fake_cuda.set("latency_ns=200000")
        [figures] = group.load_checked(1, 0, EXPERTS, pattern_writer(1))
        assert 0 < fake_cuda.number("host_functions") < figures["pieces"]  # type: ignore[operator]
        eventually(lambda: fake_cuda.number("cuLaunchHostFunc") == fake_cuda.number("host_functions"))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("cuda", Cuda()),
        ("cuda:3", Cuda(3)),
        ("cuda,pin=permissive", Cuda(pin="permissive")),
        ("cuda:0,batch=yes,pin=strict", Cuda(0, batch=True)),
    ],
)
def test_specs(spec: str, expected: Cuda) -> None:
    assert parse_device(spec) == expected


@pytest.mark.parametrize("spec", ["cudax", "cuda:x", "cuda:-1", "cuda,pin=no", "cuda,slow=1ms", "cuda:1:2"])
def test_specs_that_are_refused(spec: str) -> None:
    with pytest.raises(errors.ConfigError):
        parse_device(spec)


def test_batch_is_refused_where_the_driver_has_none(fake_cuda: FakeCuda, tmp_path: Path) -> None:
    old = tmp_path / "old.so"
    old.write_bytes(Path(fake_cuda.path).read_bytes().replace(b"cuMemcpyBatchAsync_v2", b"cuMemcpyBatchAsync_v?"))
    with pytest.raises(errors.ConfigError, match=r"cuda:0 .*: batch=yes needs cuMemcpyBatchAsync.*leave batch=yes out"):
        open_device(Cuda(0, batch=True, driver=str(old)))
    open_device(Cuda(0, driver=str(old))).close()


def test_ranks_without_a_device_of_their_own_are_refused(chosen: FakeCuda) -> None:
    check_device("cuda", 4)
    with pytest.raises(errors.ResourceError, match="rank 4 takes device 4, this process sees 4.*cuda:0 puts every"):
        check_device("cuda", 5)
    check_device("cuda:3", 8)


def test_no_driver_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAYERCAST_CUDA_DRIVER", raising=False)
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(errors.ResourceError, match=r"no CUDA driver: libcuda.so.1.*layercast doctor"):
            open_device("cuda")
    else:
        pytest.skip("this machine has a CUDA driver")


def test_a_library_that_is_no_driver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ResourceError, match="lacks cuInit cuDriverGetVersion"):
        Cuda(driver="libc.so.6").open()
