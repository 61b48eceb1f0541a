"""The four names that a framework which speaks version 2 of the control block (block-FP8 layerwise prefill) probes for.

Region: at least `FP8_LAYERWISE_CONTROL_BYTES` bytes on a
64-byte boundary, shared by all ranks; ranks of another version-2 implementation may sit in the same group. Kinds in
order: w13 weight, w13 scale, w2 weight, w2 scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from layercast import _native
from layercast.devices import Cuda, pin
from layercast.errors import ConfigError

__all__ = [
    "FP8_LAYERWISE_CONTROL_BYTES",
    "FP8_LAYERWISE_MAX_TP_SIZE",
    "FP8LayerwiseTransport",
    "initialize_fp8_layerwise_control",
]

FP8_LAYERWISE_CONTROL_BYTES: int = _native.VERSION_2_BYTES
FP8_LAYERWISE_MAX_TP_SIZE: int = _native.VERSION_2_RANKS
_KINDS = 4

#: `(expert, w13, w13_scale, w2, w2_scale)`: the last four are lists of tp_size addresses to fill.
ExpertWriter = Callable[[int, list[int], list[int], list[int], list[int]], object]


def initialize_fp8_layerwise_control(control_ptr: int, control_size: int, tp_size: int) -> None:
    """Write a fresh version-2 control block. Rank 0 does it once, before any rank constructs its transport.

    Raises ConfigError for a bad region or `tp_size` outside 1..8, StateError while a live rank has it open.
    """
    if not 1 <= tp_size <= FP8_LAYERWISE_MAX_TP_SIZE:
        raise ConfigError(f"tp_size: expected 1..{FP8_LAYERWISE_MAX_TP_SIZE}, got {tp_size}")
    _native.initialize_control(control_ptr, control_size, tp_size, 2, _native.VERSION_2_RANKS, _native.VERSION_2_SLOTS)


class FP8LayerwiseTransport:
    """One rank's transport over memory that the caller owns: control region, slots, destinations.

    `local_host_ptrs`: 8 addresses, [slot][kind]. `local_gpu_ptrs`: 4 addresses, one per kind, of num_experts x
    expert_nbytes[kind] bytes. `all_rank_host_ptrs`: 2 x tp_size x 4 addresses, [slot][rank][kind], on rank 0; else
    empty. `cuda_device` -1: the destination is host memory; else a GPU, for which the slots are
    pinned unless they are already. `device`: a device object in place of `cuda_device`.
    Blocks until the consumer works, raises where it cannot (ConfigError for an argument, and for a device what
    `open_device` raises); waits for no peer. After `close` no access to the caller's memory remains.
    """

    def __init__(
        self,
        control_ptr: int,
        control_size: int,
        rank: int,
        tp_size: int,
        cuda_device: int,
        local_host_ptrs: Sequence[int],
        local_gpu_ptrs: Sequence[int],
        all_rank_host_ptrs: Sequence[int],
        expert_nbytes: Sequence[int],
        num_experts: int,
        timeout_ms: int = 60000,
        *,
        device: _native.Device | None = None,
    ) -> None:
        if device is None and cuda_device < -1:
            raise ConfigError(f"cuda_device: expected 0 or more, or -1 for host memory, got {cuda_device}")
        if not 1 <= tp_size <= FP8_LAYERWISE_MAX_TP_SIZE:
            raise ConfigError(f"tp_size: expected 1..{FP8_LAYERWISE_MAX_TP_SIZE}, got {tp_size}")
        if len(local_gpu_ptrs) != _KINDS or len(expert_nbytes) != _KINDS:
            raise ConfigError(
                f"local_gpu_ptrs, expert_nbytes: expected {_KINDS} each, "
                f"got {len(local_gpu_ptrs)} and {len(expert_nbytes)}"
            )
        _expect_non_negative(rank=rank, num_experts=num_experts, timeout_ms=timeout_ms)
        self._device: _native.Device | None = None  # the one that closes with this object
        if device is None and cuda_device != -1:
            # Whoever owns the slots may have pinned them, or has reasons not to.
            device = self._device = Cuda(cuda_device, pin="permissive").open()
        self.rank = rank
        self.tp_size = tp_size
        self.num_experts = num_experts
        self.expert_nbytes = tuple(expert_nbytes)
        try:
            if self._device is not None:
                for address, nbytes in _spans(local_host_ptrs, expert_nbytes):
                    pin(self._device, address, nbytes, f"slots of rank {rank}")
            self._native = _native.Transport(
                control=control_ptr,
                control_bytes=control_size,
                rank=rank,
                tp_size=tp_size,
                kind_bytes=list(expert_nbytes),
                experts=num_experts,
                local_slots=list(local_host_ptrs),
                all_slots=list(all_rank_host_ptrs),
                slot_bytes=0,
                piece_bytes=0,
                destinations=list(local_gpu_ptrs),
                device=_native.host_device() if device is None else device,
                timeout_ms=timeout_ms,
                join_timeout_ms=max(timeout_ms, 600_000),
                writer_timeout_ms=None,
            )
        except BaseException:
            self._close_device()  # the caller gives the slots back at once
            raise
        self._writer: tuple[ExpertWriter, _native.Writer] | None = None

    @property
    def closed(self) -> bool:
        """Whether `close` has been called here."""
        return self._native.closed

    def join(self, epoch: int, layer_id: int, expert_count: int) -> None:
        """Enter a layer. Every rank; epochs grow; ranks must agree on layer and count."""
        self._native.join(epoch, layer_id, expert_count)

    def run_producer(self, epoch: int, layer_id: int, expert_count: int, writer: ExpertWriter | _native.Writer) -> None:
        """Stream a joined layer (rank 0). Returns when every rank has acknowledged every expert."""
        self._native.run(epoch, layer_id, expert_count, self._as_writer(writer))

    def wait(self, epoch: int) -> dict[str, Any]:
        """Wait until this rank's bytes of the layer are complete on its device; returns the layer's statistics."""
        statistics = self._native.wait(epoch)
        return {**statistics, "poisoned": False, "error_code": 0, "error_rank": -1, "error_message": ""}

    def close(self) -> None:
        """End the transport: idempotent, never raises, from any thread. In the middle of a layer it poisons."""
        self._native.close()
        self._close_device()

    def _close_device(self) -> None:
        if self._device is not None:
            self._device.close()

    def __enter__(self) -> FP8LayerwiseTransport:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _as_writer(self, writer: ExpertWriter | _native.Writer) -> _native.Writer:
        if isinstance(writer, _native.Writer):
            return writer
        if not callable(writer):
            raise ConfigError(f"writer: expected a callable or a native writer, got {type(writer).__name__}")
        if self._writer is None or self._writer[0] is not writer:
            self._writer = (writer, _native.PythonWriter.addresses(writer))
        return self._writer[1]


def _spans(pointers: Sequence[int], kind_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Slots that follow each other without a gap are one span: they may share a page, which is pinned once."""
    spans: list[tuple[int, int]] = []
    for address, nbytes in sorted(zip(pointers, [*kind_bytes] * (len(pointers) // len(kind_bytes)), strict=False)):
        if spans and spans[-1][0] + spans[-1][1] == address:
            spans[-1] = (spans[-1][0], spans[-1][1] + nbytes)
        else:
            spans.append((address, nbytes))
    return spans


def _expect_non_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ConfigError(f"{name}: expected >= 0, got {value}")
