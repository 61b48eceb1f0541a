"""One generation of a transport: its control region, its slots, its native core.

A failure ends a generation; `Transport.recover` begins the next in a new control region, so that whatever a process of
the old one still writes lands where nobody looks. Slots are kept while rank 0 is the same process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from layercast import _native, numa
from layercast import rendezvous as rv
from layercast.devices import pin
from layercast.errors import GroupError, JoinTimeout
from layercast.group import Group
from layercast.memory import SharedMemory

_PAGE = 4096
_VERSION = 3


class Deadline:
    """What is left of a time limit in seconds; None: no limit of its own."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """At least a millisecond: who waits with it says what for when it fails."""
        return None if self._end is None else max(0.001, self._end - time.monotonic())


@dataclass(frozen=True)
class Settings:
    """What a transport is made of; `options` goes to the native core as it is."""

    kind_bytes: tuple[int, ...]
    num_experts: int
    slots: int
    piece_bytes: int
    destinations: tuple[int, ...]
    options: Mapping[str, Any]

    @property
    def slot_bytes(self) -> int:
        """A slot holds a piece, or an expert where pieces are whole experts."""
        return -(-max(self.piece_bytes, sum(self.kind_bytes)) // _PAGE) * _PAGE

    @property
    def agreed(self) -> dict[str, int | str | list[Any]]:
        """What must be equal on all ranks."""
        return {
            "kind_bytes": list(self.kind_bytes),
            "num_experts": self.num_experts,
            "slots": self.slots,
            "piece_bytes": self.piece_bytes,
            "verify_every": self.options["verify_every"],
            "device_layers": self.options["device_layers"],
        }


class Session:
    """A rank's end of one generation."""

    def __init__(
        self,
        group: Group,
        tag: str,
        settings: Settings,
        device: _native.Device,
        *,
        previous: Session | None = None,
        timeout: float | None = None,
    ) -> None:
        self._group, self._tag, self._device = group, tag, device
        self.rank_0 = group.rank_0
        self.settings = settings
        self.ended = False
        kept = previous is not None and previous.rank_0 == self.rank_0
        self._slots: SharedMemory | None = None
        self._pinned = 0
        if previous is not None and kept:
            previous.give_slots(self)
        self._control: SharedMemory | None = None
        self._before = frozenset(previous.native.seats if previous is not None else ())
        self._on_loss: Callable[[int, rv.Identity], None] | None = None
        try:
            if group.rank == 0:
                self._begin(timeout)
            else:
                self._attach(previous.generation if previous is not None else 0, timeout)
        except BaseException:
            if previous is not None and kept:
                self.give_slots(previous)  # for another try: the other ranks have them as they are
            self.let_go()
            if previous is None and group.rank == 0:
                group.unshare(f"{tag}/control")  # the others need not wait for it
            raise
        self._watch()

    def _begin(self, timeout: float | None) -> None:
        """Rank 0: make the generation. The others see it when this rank is in it and nothing is left that can fail."""
        if self._slots is None:
            self._share_slots(timeout)
        settings, tp = self.settings, self._group.tp
        self._control = SharedMemory.create(f"{self._group.name}/{self._tag}/control", self._control_bytes)
        _native.initialize_control(self._control.address, self._control.nbytes, tp, _VERSION, tp, settings.slots)
        self.native = self._open()
        try:
            self._group.publish(f"{self._tag}/control", self._control, agree=settings.agreed, timeout=timeout)
        except BaseException:
            self.native.close()
            raise
        self.generation = self._control.generation

    def _attach(self, newer_than: int, timeout: float | None) -> None:
        deadline = Deadline(timeout)
        while True:
            self._control = self._group.share(
                f"{self._tag}/control",
                self._control_bytes,
                agree=self.settings.agreed,
                newer_than=newer_than,
                timeout=deadline.left(),
            )
            if self._slots is None:
                self._share_slots(deadline.left())
            self.generation = self._control.generation
            try:
                self.native = self._open()
                return
            except GroupError as error:
                # Who recovers, or replaces a dead rank, has found a generation that has failed: the next one is theirs.
                waits = newer_than or self._group.replaces
                if not waits or isinstance(error, JoinTimeout):
                    raise
                newer_than = self.generation
                self._control.close()

    @property
    def _control_bytes(self) -> int:
        return -(-_native.control_bytes(self._group.tp, self.settings.slots) // _PAGE) * _PAGE

    def _share_slots(self, timeout: float | None) -> None:
        settings = self.settings
        nbytes = self._group.tp * settings.slots * settings.slot_bytes
        self._slots = self._group.share(f"{self._tag}/slots", nbytes, agree=settings.agreed, timeout=timeout)
        own = self._slot_address(0, self._group.rank)
        own_bytes = settings.slots * settings.slot_bytes
        numa.place_near(self._device.bus_id, own, own_bytes, f"slots of rank {self._group.rank}")
        pin(self._device, own, own_bytes, f"slots of rank {self._group.rank}")
        self._pinned = own

    def _slot_address(self, slot: int, rank: int) -> int:
        assert self._slots is not None
        return self._slots.address + (rank * self.settings.slots + slot) * self.settings.slot_bytes

    @property
    def slots_node(self) -> int | None:
        """The NUMA node on which this rank's slots lie; None: nobody says, or they are gone."""
        return None if self._slots is None else numa.node_of_address(self._slot_address(0, self._group.rank))

    def _open(self) -> _native.Transport:
        settings, rank, tp = self.settings, self._group.rank, self._group.tp
        assert self._control is not None
        slots = range(settings.slots)
        return _native.Transport(
            control=self._control.address,
            control_bytes=self._control.nbytes,
            rank=rank,
            tp_size=tp,
            kind_bytes=list(settings.kind_bytes),
            experts=settings.num_experts,
            local_slots=[self._slot_address(slot, rank) for slot in slots],
            all_slots=[self._slot_address(slot, r) for slot in slots for r in range(tp)] if rank == 0 else [],
            slot_bytes=settings.slot_bytes,
            piece_bytes=settings.piece_bytes,
            destinations=list(settings.destinations),
            device=self._device,
            **settings.options,
        )

    def _watch(self) -> None:
        native, before = self.native, self._before

        def on_loss(rank: int, who: rv.Identity) -> None:
            seat = (rank, who.pid, who.started)
            if seat not in before or seat in native.seats:  # else its end was the last generation's failure
                native.report_death(*seat)

        self._on_loss = on_loss
        self._group.on_loss(on_loss)

    def give_slots(self, heir: Session) -> None:
        """The slots go to another generation, as they are."""
        heir._slots, heir._pinned = self._slots, self._pinned
        self._slots, self._pinned = None, 0

    def close(self) -> None:
        """End the native core, then the memory. In the middle of a layer it poisons. Never raises."""
        self.native.close()
        self.let_go()

    def end(self) -> None:
        """End the native core alone: what it used may live on in the next generation. Idempotent."""
        self.ended = True
        self.native.close()
        self._forget_losses()

    def _forget_losses(self) -> None:
        if self._on_loss is not None:
            self._group.off_loss(self._on_loss)
            self._on_loss = None

    def let_go(self) -> None:
        """Give memory back. Idempotent."""
        self._forget_losses()
        if self._pinned:
            self._device.unpin(self._pinned)
            self._pinned = 0
        for name, memory in (("control", self._control), ("slots", self._slots)):
            if memory is None:
                continue
            if self._group.rank == 0 and memory.generation:
                self._group.unshare(f"{self._tag}/{name}", memory.generation)
            memory.close()
        self._control = self._slots = None
