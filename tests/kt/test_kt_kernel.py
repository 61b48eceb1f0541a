"""KTransformers' own CPU engine, the package kt-kernel, fills our slots. `make test-kt` sets up what this needs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.framework import Client, Ranks
from tests.support.processes import Child

import layercast
from layercast import kt
from layercast.checkpoint.demo import write_demo_checkpoint

HIDDEN, INNER, EXPERTS, LAYERS = 1024, 512, 8, 3


def _missing() -> str:
    """Why the engine cannot run here; empty where it can. Asked before it is imported, which is instructions too."""
    if importlib.util.find_spec("kt_kernel") is None:
        return "kt-kernel is not installed: make test-kt has it in a virtual environment of its own"
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    lacking = [flag for flag in ("avx2", "fma") if flag not in flags]
    return f"kt-kernel needs {', '.join(lacking)}, which this CPU lacks" if lacking else ""


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing() or "it is there")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "model"
    return write_demo_checkpoint(path, layers=LAYERS, experts=EXPERTS, hidden=HIDDEN, intermediate=INNER, vocab=64)


def kt_kernel(variant: str) -> Any:
    """The package, in the child that uses it; `variant`: a lesser one than the CPU's best, empty for the best."""
    if variant:
        os.environ["KT_KERNEL_CPU_VARIANT"] = variant
    import torch

    if not torch.cuda.is_available():  # the engine asks for pinned memory, which only a GPU's driver gives
        for name in ("zeros", "empty"):
            setattr(torch, name, ordinary_memory(getattr(torch, name)))
    import kt_kernel

    return kt_kernel


def ordinary_memory(make: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, pin_memory=False, **options: make(*args, **options)


def engines(kt_kernel: Any, checkpoint: Path) -> list[Any]:
    """As a framework makes them: one per layer, all on one pool of threads."""
    import torch

    found = []
    for layer in range(LAYERS):
        wrapper = kt_kernel.KTMoEWrapper(
            layer_idx=layer,
            num_experts=EXPERTS,
            num_experts_per_tok=2,
            hidden_size=HIDDEN,
            moe_intermediate_size=INNER,
            gpu_experts_mask=None,
            cpuinfer_threads=2,
            threadpool_count=1,
            weight_path=str(checkpoint),
            chunked_prefill_size=128,
            method="FP8",
        )
        wrapper.load_weights(torch.arange(EXPERTS, dtype=torch.int64))
        found.append(wrapper)
    return found


def wrong(path: Path, layer: int, rank: int, tp: int, tensors: list[np.ndarray]) -> list[int]:
    """Experts of `layer` whose bytes in `tensors` are not those of the checkpoint."""
    with layercast.Checkpoint.open(path) as checkpoint:
        found = []
        for expert in range(EXPERTS):
            wanted = checkpoint.reference(layer, expert, rank, tp).values()
            shares = [tensor.reshape(EXPERTS, -1)[expert] for tensor in tensors]
            if not all(np.array_equal(*pair) for pair in zip(shares, wanted, strict=True)):
                found.append(expert)
        return found


@pytest.mark.parametrize("variant", ["", "avx2"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_framework_on_kt_kernel_streams_through_us(checkpoint: Path, tp: int, variant: str) -> None:
    ranks = Ranks(tp)
    with layercast.Checkpoint.open(checkpoint) as opened:
        sizes = opened.layout(tp).sizes

    def body(rank: int) -> object:
        package = kt_kernel(variant)
        extension = package.kt_kernel_ext
        own = extension.FP8LayerwiseTransport
        assert own is not kt.FP8LayerwiseTransport
        kt.install(package)
        wrappers = engines(package, checkpoint) if rank == 0 else []

        def produce(transport: Any, epoch: int, layer: int, experts: int) -> None:
            wrappers[layer].run_layerwise_fp8_batch(transport, epoch, layer, experts)

        client = Client(extension, ranks, rank, EXPERTS, sizes, produce if rank == 0 else None)
        assert isinstance(client.transport, kt.FP8LayerwiseTransport)
        bad: list[object] = []
        used = []

        def use(layer: int, tensors: list[np.ndarray]) -> None:
            used.append(layer)
            bad.extend((layer, expert) for expert in wrong(checkpoint, layer, rank, tp, tensors))

        client.round(range(LAYERS), 2, use)
        client.end()
        kt.uninstall(package)
        assert extension.FP8LayerwiseTransport is own
        return used, bad, package.__cpu_variant__, sorted({type(w.moe).__name__ for w in wrappers})

    children = [Child(lambda rank=rank: body(rank)) for rank in range(tp)]
    found = [child.result(100) for child in children]
    for rank, result in enumerate(found):
        assert isinstance(result, tuple), result
        used, bad, loaded, classes = result
        assert (used, bad) == ([*range(LAYERS)] * 2, [])
        if variant:
            assert loaded == variant
            assert classes == (["AVX2FP8_MOE"] if rank == 0 else [])


@pytest.mark.parametrize("tp", [1, 2])
def test_the_engine_as_a_writer_of_our_own_groups(checkpoint: Path, tp: int, tmp_path: Path) -> None:
    def body(rank: int) -> object:
        wrappers = engines(kt_kernel(""), checkpoint) if rank == 0 else []
        with layercast.Checkpoint.open(checkpoint) as opened:
            layout = opened.layout(tp)
        bad: list[object] = []
        with (
            layercast.Group("engine", rank, tp, runtime_dir=tmp_path) as group,
            layercast.Transport(group, layout, num_experts=EXPERTS) as transport,
        ):
            for layer in range(LAYERS):
                transport.join(layer + 1, layer, EXPERTS)
                if rank == 0:
                    transport.run(layer + 1, layer, EXPERTS, kt.engine_writer(wrappers[layer]))
                transport.wait(layer + 1)
                bad.extend((layer, x) for x in wrong(checkpoint, layer, rank, tp, transport.host_views()))
        return bad

    tmp_path.chmod(0o700)
    children = [Child(lambda rank=rank: body(rank)) for rank in range(tp)]
    assert [child.result(100) for child in children] == [[]] * tp
