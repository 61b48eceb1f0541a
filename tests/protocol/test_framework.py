"""A serving framework that speaks version 2, in processes of its own, on our four names: bytes, and its errors."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize
from tests.support.framework import Client, Ranks
from tests.support.processes import Child

from layercast import errors, kt
from layercast.checkpoint import Checkpoint
from layercast.checkpoint.demo import write_demo_checkpoint

HIDDEN, INNER, EXPERTS, LAYERS = 256, 1024, 5, 3
BLOCK = 128


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo_checkpoint(
        tmp_path_factory.mktemp("demo") / "model",
        layers=LAYERS,
        experts=EXPERTS,
        hidden=HIDDEN,
        intermediate=INNER,
        vocab=64,
    )


@pytest.fixture(autouse=True)
def nothing_is_left_in_shared_memory() -> Iterator[None]:
    before = {name for name in os.listdir("/dev/shm") if name.startswith("layercast-test-")}
    yield
    assert {name for name in os.listdir("/dev/shm") if name.startswith("layercast-test-")} <= before


def nbytes(tp: int) -> list[int]:
    inner = INNER // tp
    grid = [2 * -(-inner // BLOCK) * (HIDDEN // BLOCK), (HIDDEN // BLOCK) * -(-inner // BLOCK)]
    return [2 * inner * HIDDEN, 4 * grid[0], HIDDEN * inner, 4 * grid[1]]


class Slicer:
    """The framework's own reading of a checkpoint: plain rows and columns of its tensors, with safetensors' reader."""

    def __init__(self, path: Path, tp: int) -> None:
        self.tp = tp
        self.tensors: dict[str, np.ndarray] = {}
        for file in sorted(path.glob("*.safetensors")):
            for name, found in deserialize(file.read_bytes()):
                if ".experts." in name:
                    dtype = np.float32 if "scale" in name else np.uint8
                    self.tensors[name] = np.frombuffer(found["data"], dtype).reshape(found["shape"])

    def __call__(self, layer: int, expert: int, rank: int) -> list[np.ndarray]:
        def part(projection: str, suffix: str, axis: int) -> np.ndarray:
            whole = self.tensors[f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.{suffix}"]
            size = whole.shape[axis] // self.tp
            cut = slice(rank * size, (rank + 1) * size)
            return whole[cut] if axis == 0 else whole[:, cut]

        found = []
        for suffix in ("weight", "weight_scale_inv"):
            found.append(np.concatenate([part("gate", suffix, 0), part("up", suffix, 0)]))
            found.append(part("down", suffix, 1))
        w13, w2, w13_scale, w2_scale = (np.ascontiguousarray(a) for a in found)
        return [w13, w13_scale, w2, w2_scale]


def slicing_producer(path: Path, tp: int, spoil: Callable[[int, int], None] = lambda layer, expert: None) -> Any:
    """Rank 0's part with a Python writer: per expert four lists of tp addresses, filled by memmove."""
    slicer = Slicer(path, tp)

    def produce(transport: Any, epoch: int, layer: int, experts: int) -> None:
        def writer(expert: int, *addresses: list[int]) -> None:
            assert len(addresses) == 4 and all(len(of_kind) == tp for of_kind in addresses)
            spoil(layer, expert)
            for rank in range(tp):
                for of_kind, data in zip(addresses, slicer(layer, expert, rank), strict=True):
                    ctypes.memmove(of_kind[rank], data.ctypes.data, data.nbytes)

        transport.run_producer(epoch, layer, experts, writer)

    return produce


def user(path: Path, tp: int, rank: int, seen: list[int]) -> Callable[[int, list[np.ndarray]], None]:
    """A layer's use: every byte of the tensors against the library's own reading of the checkpoint."""
    checkpoint = Checkpoint.open(path)

    def use(layer: int, tensors: list[np.ndarray]) -> None:
        for expert in range(EXPERTS):
            wanted = checkpoint.reference(layer, expert, rank, tp).values()
            for tensor, share in zip(tensors, wanted, strict=True):
                size = share.nbytes
                assert np.array_equal(tensor[expert * size : (expert + 1) * size], share), (layer, expert)
        seen.append(layer)

    return use


def client(path: Path, ranks: Ranks, rank: int, produce: Any = None, **options: Any) -> Client:
    if produce is None and rank == 0:
        produce = slicing_producer(path, ranks.tp)
    return Client(kt, ranks, rank, EXPERTS, nbytes(ranks.tp), produce, **options)


def start(tp: int, body: Callable[[int], object]) -> list[Child]:
    return [Child(lambda rank=rank: body(rank)) for rank in range(tp)]


def results(children: list[Child]) -> list[object]:
    found = [child.result(100) for child in children]
    assert [child.status for child in children] == [0] * len(children)  # no signal, also after unmapping
    return found


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_two_prompts_in_chunks_every_byte(checkpoint: Path, tp: int) -> None:
    ranks = Ranks(tp)

    def body(rank: int) -> object:
        seen: list[int] = []
        use = user(checkpoint, tp, rank, seen)
        mine = client(checkpoint, ranks, rank)
        addresses = list(mine.addresses)
        mine.round(range(LAYERS), 2, use)
        time.sleep(0.2)  # between prompts it idles
        mine.round(range(LAYERS), 3, use)
        assert addresses == [tensor.ctypes.data for tensor in mine.tensors]
        mine.end()
        return seen, [load["epoch"] for load in mine.loads]

    loads = 5 * LAYERS
    assert results(start(tp, body)) == [([*range(LAYERS)] * 5, [*range(1, loads + 1)])] * tp


def test_the_constructor_raises_on_one_rank(checkpoint: Path) -> None:
    """Nobody waits for the unlucky one; those who never ran a layer close as ever, and the next region works."""
    ranks = Ranks(4)

    def body(rank: int) -> object:
        started = time.monotonic()
        with pytest.raises((errors.ConfigError, RuntimeError)) as error:
            client(checkpoint, ranks, rank, device_fault=rank == 2)
        took = time.monotonic() - started
        seen: list[int] = []
        second = client(checkpoint, ranks, rank, region=1)
        second.round(range(LAYERS), 1, user(checkpoint, 4, rank, seen))
        second.end()
        return str(error.value), took < 30, seen

    found = results(start(4, body))
    assert [of_rank[1:] for of_rank in found] == [(True, [*range(LAYERS)])] * 4
    assert "null" in found[2][0]
    assert {found[rank][0] for rank in (0, 1, 3)} == {"another rank could not construct its transport"}


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("layer", [0, 2])
def test_the_writer_raises(checkpoint: Path, tp: int, layer: int) -> None:
    """Layer 0 is loaded from the main thread, layer 2 from the worker. Every rank's own text has the cause."""
    ranks = Ranks(tp)

    def spoil(at: int, expert: int) -> None:
        if (at, expert) == (layer, 3):
            raise OSError("the disk is gone")

    def body(rank: int) -> object:
        produce = slicing_producer(checkpoint, tp, spoil) if rank == 0 else None
        mine = client(checkpoint, ranks, rank, produce)
        seen: list[int] = []
        with pytest.raises(errors.WriterError) as error:
            mine.round(range(LAYERS), 2, user(checkpoint, tp, rank, seen))
        assert not mine.mapped and mine.transport.closed
        if rank == 0:
            assert isinstance(error.value.__cause__, OSError)
        # The old object stays; beside it a second region with new transports, epochs from 1.
        second = client(checkpoint, ranks, rank, region=1)
        second.round(range(LAYERS), 2, user(checkpoint, tp, rank, seen))
        second.end()
        mine.transport.close()
        return str(error.value), seen

    for text, seen in results(start(tp, body)):
        assert "the disk is gone" in text and f"layer {layer}" in text and "expert 3" in text
        assert seen == [*range(layer), *[*range(LAYERS)] * 2]


def test_a_second_region_while_the_poisoned_one_is_still_open(checkpoint: Path) -> None:
    ranks = Ranks(2)

    def spoil(layer: int, expert: int) -> None:
        raise OSError("the disk is gone")

    def body(rank: int) -> object:
        seen: list[int] = []
        use = user(checkpoint, 2, rank, seen)
        first = client(checkpoint, ranks, rank, slicing_producer(checkpoint, 2, spoil) if rank == 0 else None)
        with pytest.raises(errors.WriterError):
            first.load(0)
        second = client(checkpoint, ranks, rank, region=1)
        second.round(range(LAYERS), 1, use)
        with pytest.raises(errors.WriterError, match="the disk is gone"):
            first.transport.join(2, 0, EXPERTS)
        first.end()
        second.round(range(LAYERS), 1, use)
        second.end()
        return seen

    assert results(start(2, body)) == [[*range(LAYERS)] * 2] * 2


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("when", ["loading", "computing"])
def test_a_rank_is_killed(checkpoint: Path, victim: int, when: str) -> None:
    """The others raise with its rank and pid in the text, and are gone from the memory at once."""
    ranks = Ranks(4)

    def in_writer(layer: int, expert: int) -> None:
        if layer == 1 and expert == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def in_load(transport: Any, epoch: int, layer: int, experts: int) -> None:
        if layer == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def body(rank: int) -> object:
        produce = None
        if when == "loading" and rank == victim:
            produce = slicing_producer(checkpoint, 4, in_writer) if rank == 0 else in_load
        mine = client(checkpoint, ranks, rank, produce)
        look = user(checkpoint, 4, rank, [])

        def use(layer: int, tensors: list[np.ndarray]) -> None:
            look(layer, tensors)
            if layer == 1 and rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(errors.PeerDied) as error:
            mine.round(range(LAYERS), 2, use)
        assert not mine.mapped
        time.sleep(0.2)  # whatever still ran would now meet unmapped memory
        return str(error.value), error.value.rank, error.value.pid

    children = start(4, body)
    for rank, child in enumerate(children):
        if rank == victim:
            child.reap()
            assert child.status == signal.SIGKILL
            continue
        text, who, pid = child.result(100)
        assert child.status == 0
        assert (who, pid) == (victim, children[victim].pid)
        assert f"rank {victim}" in text and str(pid) in text


@pytest.mark.parametrize("culprit", [0, 1])
def test_an_error_of_the_model_while_the_worker_is_loading(checkpoint: Path, culprit: int) -> None:
    """One rank's main thread closes and unmaps under its own worker's call, which raises; so do the peers."""
    ranks = Ranks(2)

    def body(rank: int) -> object:
        mine = client(checkpoint, ranks, rank)
        look = user(checkpoint, 2, rank, [])

        def use(layer: int, tensors: list[np.ndarray]) -> None:
            look(layer, tensors)
            if layer == 1 and rank == culprit:
                mine.fence.set()
                time.sleep(0.05 * (rank == 0))
                raise ValueError("the model is wrong")

        with pytest.raises((ValueError, errors.ClosedWhileActive, errors.PeerClosed)) as error:
            mine.round(range(LAYERS), 2, use)
        assert not mine.mapped
        time.sleep(0.2)
        return type(error.value).__name__, str(error.value)

    found = results(start(2, body))
    assert found[culprit] == ("ValueError", "the model is wrong")
    assert f"rank {culprit}" in found[1 - culprit][1]
