"""One rank's end of a group: join, run, wait, close."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from layercast import _native
from layercast.devices import open_device
from layercast.errors import ConfigError, StateError
from layercast.geometry import ExpertLayout
from layercast.group import Group
from layercast.memory import SharedMemory
from layercast.observe import LayerStatistics
from layercast.writers import ExpertWriter, Writer, as_writer

Seconds: TypeAlias = "float | None"

#: A piece stays in the caches between the writer's store and the consumer's load.
DEFAULT_PIECE_BYTES = 1 << 20
DEFAULT_SLOTS = 4
_PAGE = 4096
_VERSION = 3


class Transport:
    """Receives the experts of a layer on this rank; on rank 0 also sends them to all.

    `layout`: the expert's kinds and bytes per rank (or just the bytes per kind). `num_experts`: the most a layer may
    have. `device`: see `open_device`. `slots` buffers of `piece_bytes` each per rank stand between rank 0 and the
    devices. `destinations`: one address per kind of num_experts x bytes each; None: the device allocates.
    Limits in seconds, None for no limit: `timeout` without progress of a layer, `join_timeout` for a live peer that
    has not come, `writer_timeout` inside one call of the writer.

    Every rank makes its transports in the same order. Rank 0 does not wait for the others; the others wait for
    rank 0. Raises ConfigError for bad arguments, AgreementError where ranks differ, ResourceError for lack of memory.
    """

    def __init__(
        self,
        group: Group,
        layout: ExpertLayout | Sequence[int],
        *,
        num_experts: int,
        device: str | _native.Device = "host",
        slots: int = DEFAULT_SLOTS,
        piece_bytes: int = DEFAULT_PIECE_BYTES,
        destinations: Sequence[int] | None = None,
        timeout: Seconds = 60.0,
        join_timeout: Seconds = 600.0,
        writer_timeout: Seconds = None,
    ) -> None:
        self.kind_bytes = tuple(layout.sizes if isinstance(layout, ExpertLayout) else layout)
        self.layout = layout if isinstance(layout, ExpertLayout) else None
        self.rank, self.tp_size = group.rank, group.tp
        self.num_experts = num_experts
        self.slots, self.piece_bytes = slots, piece_bytes
        self._check(destinations)
        limits = {
            "timeout_ms": _milliseconds("timeout", timeout),
            "join_timeout_ms": _milliseconds("join_timeout", join_timeout),
            "writer_timeout_ms": _milliseconds("writer_timeout", writer_timeout),
        }
        self.device = open_device(device)
        self._group = group
        self._callable: tuple[ExpertWriter, Writer] | None = None
        self._joined = 0
        self._tag = group.next_tag("transport")
        slot_bytes = -(-max(piece_bytes, sum(self.kind_bytes)) // _PAGE) * _PAGE
        self._share_memory(slot_bytes)
        try:
            self._native = _native.Transport(
                control=self._control.address,
                control_bytes=self._control.nbytes,
                rank=self.rank,
                tp_size=self.tp_size,
                kind_bytes=list(self.kind_bytes),
                experts=num_experts,
                local_slots=[self._slot_address(slot, self.rank, slot_bytes) for slot in range(slots)],
                all_slots=[
                    self._slot_address(slot, rank, slot_bytes) for slot in range(slots) for rank in range(self.tp_size)
                ]
                if self.rank == 0
                else [],
                slot_bytes=slot_bytes,
                piece_bytes=piece_bytes,
                destinations=list(destinations or ()),
                device=self.device,
                **limits,
            )
        except BaseException:
            _let_go(group, self._tag, self._slots, self._control)
            raise
        # `close`, or the last reference dropped, or the interpreter's exit: whatever comes first.
        on_loss = self._native.report_death
        self._close = weakref.finalize(
            self, _close, os.getpid(), group, self._tag, self._native, on_loss, self._slots, self._control
        )
        group.on_peer_lost(on_loss)

    def _check(self, destinations: Sequence[int] | None) -> None:
        if not self.kind_bytes or min(self.kind_bytes) < 1:
            raise ConfigError(f"layout: expected the bytes of at least one kind, each > 0, got {self.kind_bytes}")
        if self.num_experts < 1:
            raise ConfigError(f"num_experts: expected > 0, got {self.num_experts}")
        if not 1 <= self.slots <= _native.MAX_SLOTS:
            raise ConfigError(f"slots: expected 1..{_native.MAX_SLOTS}, got {self.slots}")
        if self.piece_bytes < 1:
            raise ConfigError(f"piece_bytes: expected > 0, got {self.piece_bytes}")
        if destinations is not None and len(destinations) != len(self.kind_bytes):
            raise ConfigError(f"destinations: expected one per kind ({len(self.kind_bytes)}), got {len(destinations)}")

    def _share_memory(self, slot_bytes: int) -> None:
        agree: dict[str, int | str | list[int]] = {
            "kind_bytes": list(self.kind_bytes),
            "num_experts": self.num_experts,
            "slots": self.slots,
            "piece_bytes": self.piece_bytes,
        }
        control_bytes = -(-_native.control_bytes(self.tp_size, self.slots) // _PAGE) * _PAGE

        def initialize(memory: SharedMemory) -> None:
            _native.initialize_control(memory.address, memory.nbytes, self.tp_size, _VERSION, self.tp_size, self.slots)

        self._control = self._group.share(f"{self._tag}/control", control_bytes, agree=agree, prepare=initialize)
        try:
            nbytes = self.tp_size * self.slots * slot_bytes
            self._slots = self._group.share(f"{self._tag}/slots", nbytes, agree=agree)
        except BaseException:
            self._control.close()
            raise

    def _slot_address(self, slot: int, rank: int, slot_bytes: int) -> int:
        return self._slots.address + (rank * self.slots + slot) * slot_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` has been called on this rank."""
        return self._native.closed

    @property
    def last_epoch(self) -> int:
        """The newest epoch that rank 0 has published; 0 before the first."""
        return self._native.last_epoch

    @property
    def last_epoch_joined(self) -> int:
        """The last epoch that this rank has joined; 0 before the first."""
        return self._joined

    @property
    def destinations(self) -> list[int]:
        """Addresses of the device layer, one per kind; they stay the same over the transport's life."""
        return self._native.destinations

    def join(self, epoch: int, layer: int, experts: int) -> None:
        """Enter a layer. Every rank calls it with the same arguments; epochs start at 1 and grow."""
        self._native.join(epoch, layer, experts)
        self._joined = epoch

    def run(self, epoch: int, layer: int, experts: int, writer: Writer | ExpertWriter) -> None:
        """Stream a joined layer (rank 0). Returns when every rank has acknowledged every expert."""
        self._native.run(epoch, layer, experts, self._as_writer(writer))

    def wait(self, epoch: int) -> LayerStatistics:
        """Wait until this rank's bytes of the layer are complete on its device."""
        return LayerStatistics.from_native(self._native.wait(epoch))

    def load(self, epoch: int, layer: int, experts: int, writer: Writer | ExpertWriter | None) -> LayerStatistics:
        """Join, run (on rank 0, which alone gives a writer) and wait."""
        if self.rank == 0 and writer is None:
            raise ConfigError("writer: rank 0 needs one")
        self.join(epoch, layer, experts)
        if self.rank == 0 and writer is not None:
            self.run(epoch, layer, experts, writer)
        return self.wait(epoch)

    def host_views(self) -> list[npt.NDArray[np.uint8]]:
        """The device layer of a device whose memory is the host's: per kind uint8 [num_experts, bytes], no copy.

        Valid while the transport is open.
        """
        if self.closed:
            raise StateError("this transport is closed; its layer is gone")
        return [
            _as_array(address, self.num_experts, nbytes)
            for address, nbytes in zip(self.destinations, self.kind_bytes, strict=True)
        ]

    def close(self) -> None:
        """End the transport: idempotent, never raises, from any thread. In the middle of a layer it poisons."""
        self._close()
        self._native.close()  # where another thread closes just now: wait for it

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _as_writer(self, writer: Writer | ExpertWriter) -> Writer:
        if isinstance(writer, _native.Writer):
            return writer
        if self._callable is None or self._callable[0] is not writer:
            self._callable = (writer, as_writer(writer))
        return self._callable[1]


def _close(
    owner: int,
    group: Group,
    tag: str,
    native: _native.Transport,
    on_loss: Callable[[int, int], None],
    slots: SharedMemory,
    control: SharedMemory,
) -> None:
    if os.getpid() != owner:  # a forked child's copy: it ends with the child, and touches nothing
        return
    native.close()
    group.off_peer_lost(on_loss)
    _let_go(group, tag, slots, control)


def _let_go(group: Group, tag: str, slots: SharedMemory, control: SharedMemory) -> None:
    if group.rank == 0:
        group.unshare(f"{tag}/control")
        group.unshare(f"{tag}/slots")
    slots.close()
    control.close()


def _milliseconds(name: str, seconds: Seconds) -> int | None:
    """T8: any positive limit means what it says; None is none."""
    if seconds is None or seconds == float("inf"):
        return None
    if not seconds > 0:
        raise ConfigError(f"{name}: expected more than 0 seconds (or None for no limit), got {seconds}")
    return min(max(1, round(seconds * 1000)), 2**64 - 1)


def _as_array(address: int, experts: int, nbytes: int) -> npt.NDArray[np.uint8]:
    interface = {"shape": (experts, nbytes), "typestr": "|u1", "data": (address, False), "version": 3}
    holder = type("_HostLayer", (), {"__array_interface__": interface})()
    return np.asarray(holder)
