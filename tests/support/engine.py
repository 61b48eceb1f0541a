"""A stand-in for kt-kernel: the parts of the package that are used, with an engine that copies from arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from layercast.geometry import fp8_block_layout


class Queue:
    """As CPUInfer: what is submitted has happened when `sync` returns, and not before."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []
        self.done = 0

    def submit(self, task: Callable[[], None]) -> None:
        self.pending.append(task)

    def sync(self) -> None:
        for task in self.pending:
            task()
        self.done += len(self.pending)
        self.pending = []


def package(version: str | None = "0.7.2", classes: Sequence[str] = ("AMXFP8_MOE", "AVX2FP8_MOE")) -> Any:
    """A fresh package: nothing that is done to it meets another."""

    class Moe:
        def __init__(self, experts: np.ndarray, sizes: Sequence[int]) -> None:
            self.experts, self.sizes = experts, sizes

        def write_weight_scale_to_buffer_task(self, tp: int, expert: int, *kinds: list[int]) -> Callable[[], None]:
            assert [len(of_kind) for of_kind in kinds] == [tp] * 4

            def task() -> None:
                starts = np.cumsum([0, *self.sizes])
                for rank in range(tp):
                    for kind, of_kind in enumerate(kinds):
                        share = self.experts[expert, rank, starts[kind] : starts[kind + 1]]
                        ctypes.memmove(of_kind[rank], share.ctypes.data, share.nbytes)

            return task

    def native(self: Any, transport: object, epoch: int, layer_id: int, expert_count: int) -> object:
        return "the engine's own", transport, epoch, layer_id, expert_count

    class NativeMoEWrapper:
        method = "FP8"
        _cpu_infer_instance: Queue | None = None

        def __init__(self, hidden: int, inner: int, tp: int, experts: int, seed: int = 0) -> None:
            self.hidden_size, self.moe_intermediate_size, self.num_experts = hidden, inner, experts
            sizes = fp8_block_layout(hidden, inner, tp).sizes
            shape = (experts, tp, sum(sizes))
            self.bytes = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
            self.moe: Any = getattr(extension.moe, classes[0])(self.bytes, sizes)
            type(self)._cpu_infer_instance = self.cpu_infer = type(self)._cpu_infer_instance or Queue()

        def submit_write_weight_scale_to_buffer(self, tp: int, expert: int, *kinds: list[int]) -> None:
            self.cpu_infer.submit(self.moe.write_weight_scale_to_buffer_task(tp, expert, *kinds))

        def sync_write_weight_scale_to_buffer(self) -> None:
            self.cpu_infer.sync()

        def run_layerwise_fp8_batch(self, transport: object, epoch: int, layer_id: int, expert_count: int) -> object:
            self.cpu_infer.sync()
            return self.moe.run_layerwise_fp8_batch(transport, epoch, layer_id, expert_count)

    extension: Any = ModuleType("kt_kernel_ext")
    extension.moe = ModuleType("kt_kernel_ext.moe")
    for name in classes:
        setattr(extension.moe, name, type(name, (Moe,), {"run_layerwise_fp8_batch": native}))
    extension.FP8LayerwiseTransport = type("FP8LayerwiseTransport", (), {})
    extension.FP8_LAYERWISE_CONTROL_BYTES = 4096
    found: Any = ModuleType("kt_kernel")
    found.kt_kernel_ext = extension
    found.experts = SimpleNamespace(NativeMoEWrapper=NativeMoEWrapper)
    if version is not None:
        found.__version__ = version
    return found
