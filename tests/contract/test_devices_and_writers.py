"""One contract for every device and every writer: the right bytes, whatever the sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.support import writers
from tests.support.cuda_rig import CudaRig
from tests.support.rig import Rig

from layercast import _native

DEVICES: dict[str, Callable[[], _native.Device]] = {
    "host": _native.host_device,
    "link": lambda: _native.link_device(2e9, latency_ns=2_000),
    "link-unpaced": lambda: _native.link_device(0),
}
SEED, LAYER = 11, 5


@pytest.fixture
def rigs(request: pytest.FixtureRequest) -> Callable[..., Rig]:
    """Makes rigs with devices by name; "cuda" is the fake driver, or a real one (see cuda_library)."""

    def make(device: str, tp: int, kinds: Sequence[int], experts: int, **options: object) -> Rig:
        if device in DEVICES:
            return Rig(tp, kinds, experts, device=DEVICES[device], **options)  # type: ignore[arg-type]
        request.getfixturevalue("cuda_rules")
        library = str(request.getfixturevalue("cuda_library"))
        count = len(_native.cuda_driver(library)[1])
        batch = device == "cuda-batch"
        return CudaRig(
            tp,
            kinds,
            experts,
            device=lambda rank: _native.cuda_device(library, rank % count, batch=batch),
            **options,  # type: ignore[arg-type]
        )

    return make


@pytest.mark.parametrize("device", [*DEVICES, "cuda", "cuda-batch"])
@pytest.mark.parametrize("style", writers.STYLES)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("version", [2, 3])
def test_every_device_and_writer_moves_the_same_bytes(
    rigs: Callable[..., Rig], device: str, style: str, tp: int, version: int
) -> None:
    kinds, experts = (4097, 1, 64, 12), 7
    source = writers.pattern_source(SEED, LAYER, tp, kinds, experts)
    writer = writers.make(style, source, SEED, LAYER, kinds)
    with rigs(device, tp, kinds, experts, version=version, piece_bytes=3000) as rig:
        for epoch in (1, 2, 3):
            rig.spoil()
            statistics = rig.load_checked(epoch, LAYER, experts, writer)
            assert rig.wrong(SEED, LAYER, experts) == [0] * tp
            assert [s["bytes"] for s in statistics] == [experts * sum(kinds)] * tp


@pytest.mark.parametrize(
    ("kinds", "experts", "piece_bytes"),
    [
        ((1,), 1, 4096),
        ((1,), 288, 7),
        ((4097, 33), 288, 100_000),
        ((1 << 20, 4096, 1 << 19, 2048), 9, 1 << 18),
        ((64, 64, 64, 64), 288, 1 << 16),
        ((5000,), 3, 1),
    ],
    ids=[
        "one byte",
        "bytes in sevens",
        "many experts per piece",
        "pieces of an expert",
        "tiny",
        "a byte a piece",
    ],
)
@pytest.mark.parametrize("style", ["pattern", "views"])
@pytest.mark.parametrize("device", ["host", "link-unpaced", "cuda"])
def test_odd_sizes(
    rigs: Callable[..., Rig], kinds: tuple[int, ...], experts: int, piece_bytes: int, style: str, device: str
) -> None:
    source = writers.pattern_source(SEED, LAYER, 2, kinds, experts)
    writer = writers.make(style, source, SEED, LAYER, kinds)
    with rigs(device, 2, kinds, experts, piece_bytes=piece_bytes) as rig:
        rig.load_checked(1, LAYER, experts, writer)
        assert rig.wrong(SEED, LAYER, experts) == [0, 0]


def test_fewer_experts_than_room() -> None:
    with Rig(2, (100, 3), 10) as rig:
        for region in rig.destinations[1]:
            region.array[:] = 0xEE
        rig.load_checked(1, LAYER, 4, _native.pattern_writer(SEED))
        assert rig.wrong(SEED, LAYER, 4) == [0, 0]
        assert (rig.destinations[1][0].array[400:] == 0xEE).all()


@pytest.mark.parametrize("version", [2, 3])
def test_ten_thousand_epochs(version: int) -> None:
    """A slot reused early, a lost wake-up or a stale sequence shows within so many turns."""
    kinds = (96, 8)
    with Rig(2, kinds, 3, version=version, slots=2, piece_bytes=64) as rig:
        writer = _native.pattern_writer(SEED)

        def many(rank: int) -> int:
            transport = rig.transports[rank]
            for epoch in range(1, 10_001):
                layer = epoch % 97
                transport.join(epoch, layer, 3)
                if rank == 0:
                    transport.run(epoch, layer, 3, writer)
                transport.wait(epoch)
                wrong, _ = _native.count_wrong_pattern(
                    SEED, layer, rank, 3, list(kinds), [d.address for d in rig.destinations[rank]]
                )
                assert wrong == 0, epoch
            return 10_000

        assert rig.each(many) == [10_000, 10_000]


def test_case_25_delayed_copies_match(tmp_path: object) -> None:
    """Copies delayed, producer flat out: the acknowledgement follows completion."""
    with Rig(2, (5000, 7), 12, slots=2, device=lambda: _native.link_device(0, slow_ns=20_000_000)) as rig:
        rig.load_checked(1, LAYER, 12, _native.pattern_writer(SEED))
        assert rig.wrong(SEED, LAYER, 12) == [0, 0]
