"""KTransformers' CPU engine as a writer: it holds a layer's experts in memory and fills every rank's slot itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from layercast import _native
from layercast.errors import ConfigError, StateError
from layercast.geometry import fp8_block_layout
from layercast.writers import Views, Writer

_METHOD = "FP8"


class Engine(Protocol):
    """What is used of a `KTMoEWrapper(..., method="FP8")`; one such object holds one layer."""

    method: str
    moe: Any
    num_experts: int
    hidden_size: int
    moe_intermediate_size: int

    def submit_write_weight_scale_to_buffer(
        self,
        gpu_tp_count: int,
        expert_id: int,
        w13_weight_ptrs: list[int],
        w13_scale_ptrs: list[int],
        w2_weight_ptrs: list[int],
        w2_scale_ptrs: list[int],
    ) -> object: ...

    def sync_write_weight_scale_to_buffer(self) -> object: ...


def engine_writer(wrapper: Engine) -> Writer:
    """A writer whose experts are those of `wrapper`, a `KTMoEWrapper(..., method="FP8")` that has loaded its layer.

    Takes slots of block-FP8 geometry: per expert and rank w13 uint8 [2*Ir, H], w13_scale float32
    [2*Ir/128, H/128], w2 uint8 [H, Ir], w2_scale float32 [H/128, Ir/128], Ir = I / T. For `Transport.run`, and for
    `run_producer` of the drop-in. The engine keeps the GIL while it fills, one expert at a time.

    Raises ConfigError for an engine of another method, or without these two calls; StateError where no layer is
    loaded. Slots of other sizes, experts that the engine does not have and a T off the block grid fail the layer
    with the reason, before the engine is called: it does not check where it writes.
    """
    for name in ("submit_write_weight_scale_to_buffer", "sync_write_weight_scale_to_buffer"):
        if not callable(getattr(wrapper, name, None)):
            raise ConfigError(f"engine: {type(wrapper).__name__} has no {name}", hint="expected a KTMoEWrapper")
    if wrapper.method != _METHOD:
        raise ConfigError(f"engine: its method is {wrapper.method!r}, expected {_METHOD!r}, which is block-FP8")
    if wrapper.moe is None:
        raise StateError("the engine has loaded no layer", hint="call its load_weights first")
    sizes: dict[int, tuple[int, ...]] = {}

    def fill(expert: int, views: Sequence[Views]) -> None:
        ranks = len(views)
        if not 0 <= expert < wrapper.num_experts:
            raise ConfigError(f"expert {expert}: the engine has experts 0 to {wrapper.num_experts - 1}")
        if ranks not in sizes:
            sizes[ranks] = fp8_block_layout(wrapper.hidden_size, wrapper.moe_intermediate_size, ranks).sizes
        for rank, of_rank in enumerate(views):
            given = tuple(view.nbytes for view in of_rank)
            if given != sizes[ranks]:
                raise ConfigError(
                    f"slot of rank {rank}: its kinds have {given} bytes, this engine's experts take {sizes[ranks]} "
                    f"(H = {wrapper.hidden_size}, I = {wrapper.moe_intermediate_size}, T = {ranks})"
                )
        kinds = [[of_rank[kind].ctypes.data for of_rank in views] for kind in range(len(sizes[ranks]))]
        wrapper.submit_write_weight_scale_to_buffer(ranks, expert, *kinds)
        wrapper.sync_write_weight_scale_to_buffer()

    return _native.PythonWriter.views(fill)
