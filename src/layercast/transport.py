"""One rank's end of a group: join, run, wait, close; cancel, recover."""

from __future__ import annotations

import contextlib
import operator
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from layercast import _native, machine
from layercast.arena import Arena
from layercast.checkpoint.placement import Placement
from layercast.devices import Cuda, open_device
from layercast.errors import ConfigError, GroupError, PeerClosed, PeerDied, ResourceError, StateError
from layercast.geometry import ExpertLayout
from layercast.group import Group
from layercast.memory import headroom
from layercast.observe import LayerStatistics, named
from layercast.session import Deadline, Session, Settings
from layercast.tensors import Destination, Stream, addresses, stream_handle
from layercast.timeline import Event
from layercast.writers import ExpertWriter, Writer, as_writer

Seconds: TypeAlias = "float | None"
#: The first N experts of a layer, or these, or all of them as a placement says.
Experts: TypeAlias = "int | Sequence[int] | Placement"
#: Experts that the device holds already: their addresses there, one per kind, or None for in their place.
Residents: TypeAlias = "Mapping[int, Sequence[int] | None]"
Verify: TypeAlias = "Literal['sample', 'full'] | None"

_VERIFY_EVERY: Mapping[Verify, int] = {None: 0, "full": 1, "sample": 16}


class Transport:
    """Receives the experts of a layer on this rank; on rank 0 also sends them to all.

    `layout`: the expert's kinds and bytes per rank (or just the bytes per kind). `num_experts`: the most a layer may
    have. `device`: see `open_device`. `device_layers`: how many layers it can hold; each load names one.
    `destinations`: one address or tensor per device layer and kind of num_experts x bytes each; None: the device
    allocates. `slots` buffers of `piece_bytes` bytes each per rank stand between rank 0 and the devices; None: what
    suits the caches (see `layercast.machine`). `arena`: this rank's `Arena`, for layers that skip the slots.
    Limits in seconds, None for no limit: `timeout` without progress of a layer, `join_timeout` for a live peer that
    has not come, `writer_timeout` inside one call of the writer.
    `verify`: check the bytes of every piece ("full") or every 16th ("sample") on arrival, against a checksum that
    rank 0 takes in the slot. `writer_threads`: threads with which native writers fill slots on rank 0; None: the
    cores that are left over. `cpus`: where this transport's own threads may run; None: anywhere, and the caller's
    affinity is never touched. `timeline_events`: how many events `timeline` keeps; 0: none.

    Every rank makes its transports in the same order. Rank 0 does not wait for the others; the others wait for
    rank 0. Raises ConfigError for bad arguments, AgreementError where ranks differ, ResourceError for lack of memory.
    """

    def __init__(
        self,
        group: Group,
        layout: ExpertLayout | Sequence[int],
        *,
        num_experts: int,
        device: str | Cuda | _native.Device = "host",
        slots: int | None = None,
        piece_bytes: int | None = None,
        device_layers: int = 1,
        destinations: Sequence[Destination] | None = None,
        arena: Arena | None = None,
        timeout: Seconds = 60.0,
        join_timeout: Seconds = 600.0,
        writer_timeout: Seconds = None,
        verify: Verify = None,
        writer_threads: int | None = None,
        cpus: Sequence[int] | None = None,
        timeline_events: int = 0,
    ) -> None:
        self.layout = layout if isinstance(layout, ExpertLayout) else None
        self.rank, self.tp_size = group.rank, group.tp
        self.num_experts, self.device_layers = num_experts, device_layers
        self.device = open_device(device, group.rank)
        self.slots = machine.default_slots(self.device.prompt) if slots is None else slots
        _expect("slots", self.slots, 1, _native.MAX_SLOTS)
        self.piece_bytes = machine.default_piece_bytes(group.tp, self.slots) if piece_bytes is None else piece_bytes
        self.writer_threads = machine.default_writer_threads(group.tp) if writer_threads is None else writer_threads
        self.verify, self.cpus = verify, None if cpus is None else tuple(cpus)
        self.kind_bytes = tuple(layout.sizes if isinstance(layout, ExpertLayout) else layout)
        self._check(destinations)
        options: dict[str, Any] = {
            "timeout_ms": _milliseconds("timeout", timeout),
            "join_timeout_ms": _milliseconds("join_timeout", join_timeout),
            "writer_timeout_ms": _milliseconds("writer_timeout", writer_timeout),
            "writer_threads": self.writer_threads,
            "cpus": list(self.cpus or ()),
            "verify_every": _VERIFY_EVERY[verify],
            "trace_events": timeline_events,
            "device_layers": device_layers,
        }
        if verify is not None and not self.device.moves:
            raise ConfigError(f"verify={verify!r}: device {self.device.describe()} moves no bytes to check")
        if destinations is None and self.device.readable:
            self._check_room()
        self._group = group
        self._callable: tuple[ExpertWriter, Writer] | None = None
        self._joined = 0
        self._tag = group.next_tag("transport")
        self._adopted = destinations  # they live as long as this object does
        wanted = [num_experts * nbytes for nbytes in self.kind_bytes]
        places = addresses(destinations, wanted) if destinations else ()
        self._settings = Settings(self.kind_bytes, num_experts, self.slots, self.piece_bytes, places, options)
        # In a list, for the finalizer: `recover` puts the next session into it.
        self._sessions = [self._first_session()]
        # `close`, or the last reference dropped, or the interpreter's exit: whatever comes first.
        own = None if self.device is device else self.device  # who opened it closes it
        self._finalizer = weakref.finalize(self, _close, os.getpid(), self._sessions, own)
        self._arena: Arena | None = None
        if arena is not None:
            self.use_arena(arena)

    def _first_session(self) -> Session:
        while True:
            try:
                return Session(self._group, self._tag, self._settings, self.device)
            except PeerDied:
                # Who takes a dead rank's place waits like the survivors, also when rank 0 dies meanwhile. At a group's
                # first start nobody is to come, and the death is the answer.
                if not (self._group.replaces and self._group.broken):
                    raise
            self._group.rejoin()

    def _check(self, destinations: Sequence[Destination] | None) -> None:
        if not self.kind_bytes or min(self.kind_bytes) < 1:
            raise ConfigError(f"layout: expected the bytes of at least one kind, each > 0, got {self.kind_bytes}")
        _expect("num_experts", self.num_experts, 1)
        _expect("device_layers", self.device_layers, 1)
        _expect("piece_bytes", self.piece_bytes, 1)
        _expect("writer_threads", self.writer_threads, 1, 64)
        wanted = self.device_layers * len(self.kind_bytes)
        if destinations is not None and len(destinations) != wanted:
            each = "one per kind" if self.device_layers == 1 else "one per device layer and kind"
            raise ConfigError(f"destinations: expected {each} ({wanted}), got {len(destinations)}")
        if self.verify not in _VERIFY_EVERY:
            raise ConfigError(f"verify: expected None, 'sample' or 'full', got {self.verify!r}")
        if self.cpus is None:
            return
        allowed = os.sched_getaffinity(0)
        if not self.cpus or (outside := sorted(set(self.cpus) - allowed)):
            what = outside if self.cpus else "none"
            raise ConfigError(f"cpus: expected some of {sorted(allowed)}, which this process may use, got {what}")

    def _check_room(self) -> None:
        """Device layers in host memory are touched at once: better no transport than no machine."""
        needed, room = self.device_layers * self.num_experts * sum(self.kind_bytes), headroom()
        if needed > room.nbytes:
            raise ResourceError(
                f"rank {self.rank}: {self.device_layers} device layers of {self.num_experts} experts need {needed:,}"
                f" bytes, available are {room.nbytes:,} ({room.limit})",
                hint="hold fewer layers at a time, or give more ranks a share",
            )

    @property
    def _core(self) -> _native.Transport:
        return self._sessions[0].native

    def _open(self) -> _native.Transport:
        """The native core, where what it points to still exists."""
        if self.closed:
            raise StateError("this transport is closed; open a new one")
        if self._sessions[0].ended:
            raise StateError("recover() did not succeed; call it again, or close")
        return self._core

    @property
    def closed(self) -> bool:
        """Whether `close` has been called on this rank."""
        return self._core.closed and not (self._sessions[0].ended and self._finalizer.alive)

    @property
    def failed(self) -> bool:
        """Whether the group has failed: every call raises the cause, until `recover`."""
        return self._open().failed

    @property
    def generation(self) -> int:
        """Grows with every `recover`; equal on the ranks that have met in it."""
        return self._sessions[0].generation

    @property
    def last_epoch(self) -> int:
        """The newest epoch that rank 0 has published; 0 before the first."""
        return self._open().last_epoch

    @property
    def last_epoch_joined(self) -> int:
        """The last epoch that this rank has joined; 0 before the first, and after `recover`."""
        return self._joined

    @property
    def destinations(self) -> list[int]:
        """Addresses, one per device layer and kind; they stay the same over the transport's life."""
        return self._open().destinations

    def join(
        self, epoch: int, layer: int, experts: Experts, *, resident: Residents | None = None, device_layer: int = 0
    ) -> None:
        """Enter a layer. Every rank calls it with the same arguments; epochs start at 1 and grow.

        `experts`: how many (0 to experts - 1), or which ids; each lands in its own place of the device layer. Or a
        placement: with "expert" this rank's i-th expert lands in place i, and what others own is not copied.
        `resident`: experts that are on the device already; those with addresses are copied from there, none of them
        travels, whether `experts` names them or not. `device_layer`: where this rank puts the layer.
        Raises ProtocolError on all ranks where they mean other experts.
        """
        count, ids, there = _selection(experts, resident)
        with self._figures():
            owners = _owners(experts, self.tp_size)
            self._open().join(epoch, layer, count, ids, there, owners, device_layer=device_layer)
        self._joined = epoch

    def run(
        self,
        epoch: int,
        layer: int,
        experts: Experts,
        writer: Writer | ExpertWriter | None = None,
        *,
        resident: Residents | None = None,
    ) -> None:
        """Stream a joined layer (rank 0). Returns when every rank has acknowledged every expert.

        The same arguments as `join`. Without a writer every rank copies the layer from its arena.
        """
        count, _, _ = _selection(experts, resident)
        if writer is None and not self.holds(layer):
            raise ConfigError(f"writer: rank 0 needs one; no arena of this transport holds layer {layer}")
        native = self._as_writer(writer)
        with self._figures():
            self._open().run(epoch, layer, count, native)

    @overload
    def wait(self, epoch: int) -> LayerStatistics: ...
    @overload
    def wait(self, epoch: int, *, stream: Stream) -> None: ...
    def wait(self, epoch: int, *, stream: Stream | None = None) -> LayerStatistics | None:
        """Wait until this rank's bytes of the layer are complete on its device.

        With `stream` (a CUDA stream or its handle) that stream waits instead, and the call returns at once, with
        nothing: work enqueued there from now on sees the layer. From any thread, between `join` and the next `join`.
        The layer is still to be collected by a `wait` without it, which alone tells of a failure: then the stream
        goes on all the same, and what it computes is worth nothing.
        """
        if stream is not None:
            self._open().stream_wait(epoch, stream_handle(stream))
            return None
        with self._figures():
            return LayerStatistics.from_native(self._open().wait(epoch))

    def consumed(self, stream: Stream) -> None:
        """Copies of layers joined from now on start when the work enqueued on `stream` so far has finished.

        For a model that computes from the device layer on its own stream while the host goes on to the next layer.
        Returns at once; from any thread. Raises StateError where the device has no streams.
        """
        self._open().consumed(stream_handle(stream))

    def load(
        self,
        epoch: int,
        layer: int,
        experts: Experts,
        writer: Writer | ExpertWriter | None = None,
        *,
        resident: Residents | None = None,
        device_layer: int = 0,
    ) -> LayerStatistics:
        """Join, run (on rank 0, which alone needs the writer) and wait."""
        self.join(epoch, layer, experts, resident=resident, device_layer=device_layer)
        if self.rank == 0:
            self.run(epoch, layer, experts, writer, resident=resident)
        return self.wait(epoch)

    def use_arena(self, arena: Arena) -> None:
        """From now on its layers can be loaded without a writer. Every rank has its own, with the same layers."""
        if (arena.rank, arena.tp, arena.kind_bytes) != (self.rank, self.tp_size, self.kind_bytes):
            raise ConfigError(
                f"arena: cut for rank {arena.rank} of {arena.tp} with kinds {arena.kind_bytes}; this is rank"
                f" {self.rank} of {self.tp_size} with {self.kind_bytes}"
            )
        for layer in arena.layers:
            self._open().set_arena(layer, arena.addresses(layer))
        self._arena = arena

    def holds(self, layer: int) -> bool:
        """Whether the arena has the layer: then `run` needs no writer."""
        return self._arena is not None and layer in self._arena.layers

    def cancel(self, epoch: int) -> bool:
        """Give a layer up: its `run` and `wait` raise Cancelled on every rank, and the group goes on.

        From any rank and any thread. False where the layer is over already. A writer that is inside a call is not
        interrupted: rank 0 raises when it returns, the others at once. No byte of the layer moves on a rank after its
        call has raised; what the device layer holds then is undefined.
        """
        return self._open().cancel(epoch)

    def fail(self, why: str, layer: int = -1) -> None:
        """Fail the group for a reason outside of this library: every rank's calls raise ModelFailed with `why`."""
        self._open().fail(why, layer)

    def overdue(self, epoch: int, waited: float) -> None:
        """For who waits for `epoch` without being in a call, since `waited` seconds: LayerTimeout on every rank where
        one has not joined it, naming that one; nothing where all have, as the layer's own limit runs then."""
        self._open().overdue(epoch, max(0, round(waited * 1000)))

    def recover(self, timeout: Seconds = None) -> None:
        """After a failure: meet the others again in a new generation; epochs begin anew at 1.

        Every survivor calls it; a new process takes a dead rank's place with `Group` and `Transport`, as at the
        start. Device layer, arena and (unless rank 0 was replaced) slots stay as they are. Rank 0 returns at once,
        the others when rank 0 has come, at most after `timeout` seconds (None: the group's): JoinTimeout.
        Raises StateError where nothing has failed.
        """
        old = self._sessions[0]
        if self.closed or not old.ended:  # else a second try
            native = self._open()
            if not native.failed and not self._group.broken:
                raise StateError("recover: nothing has failed; the transport goes on as it is")
        destinations = tuple(old.native.destinations)
        old.end()
        settings = Settings(**{**vars(self._settings), "destinations": destinations})
        patience = Deadline(timeout)
        while True:
            self._group.rejoin(patience.left())
            try:
                session = Session(self._group, self._tag, settings, self.device, previous=old, timeout=patience.left())
                break
            except (PeerDied, PeerClosed):
                # Another rank saw rank 0's end before this one did: look again for who replaces it.
                if not self._group.broken:
                    raise
        self._sessions[0] = session
        old.let_go()
        self._joined = 0
        if self._arena is not None:
            self.use_arena(self._arena)

    def timeline(self) -> list[Event]:
        """What this rank did in its last layers, oldest first; ask between layers."""
        return [Event.from_native(row) for row in self._open().trace()]

    def describe(self) -> dict[str, Any]:
        """How this transport works, for logs: device, slots, threads and their placement."""
        return {
            "device": self.device.describe(),
            "slots": self.slots,
            "slots_node": self._sessions[0].slots_node,
            "piece_bytes": self.piece_bytes,
            "writer_threads": self.writer_threads,
            "cpus": list(self.cpus) if self.cpus is not None else "anywhere",
            "verify": self.verify or "off",
            "arena_layers": len(self._arena.layers) if self._arena is not None else 0,
        }

    def host_views(self, device_layer: int = 0) -> list[npt.NDArray[np.uint8]]:
        """A device layer, per kind uint8 [num_experts, bytes]: in place where its memory is the host's, else a copy.

        In place they are valid while the transport is open.
        """
        kinds = len(self.kind_bytes)
        addresses = self.destinations[device_layer * kinds : (device_layer + 1) * kinds]
        if not self.device.readable:
            sizes = [self.num_experts * nbytes for nbytes in self.kind_bytes]
            copies = (self.device.read(*where) for where in zip(addresses, sizes, strict=True))
            return [np.frombuffer(copy, np.uint8).reshape(self.num_experts, -1) for copy in copies]
        return [
            _as_array(address, self.num_experts, nbytes)
            for address, nbytes in zip(addresses, self.kind_bytes, strict=True)
        ]

    def close(self) -> None:
        """End the transport: idempotent, never raises, from any thread. In the middle of a layer it poisons."""
        self._finalizer()
        self._core.close()  # where another thread closes just now: wait for it

    def __enter__(self) -> Transport:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _figures(self) -> Iterator[None]:
        """T30: the figures of a layer that fails come with its exception."""
        try:
            yield
        except GroupError as error:
            if not self.closed:
                error.statistics = named(self._core.statistics())
            raise

    def _as_writer(self, writer: Writer | ExpertWriter | None) -> Writer:
        if writer is None:
            return _native.direct_writer()
        if isinstance(writer, _native.Writer):
            return writer
        if self._callable is None or self._callable[0] is not writer:
            self._callable = (writer, as_writer(writer))
        return self._callable[1]


def _close(owner: int, sessions: list[Session], device: _native.Device | None) -> None:
    if os.getpid() != owner:  # a forked child's copy: it ends with the child, and touches nothing
        return
    for session in sessions:
        session.close()
    if device is not None:
        device.close()


def _selection(
    experts: Experts, resident: Residents | None
) -> tuple[int, list[int] | None, list[tuple[int, list[int]]]]:
    """How many travel, which (None: the first of them), and what is there already."""
    if isinstance(experts, Placement):
        experts = experts.positions
    there = residents(resident)
    if isinstance(experts, int) and not there:
        return experts, None, there
    ids = list(range(experts) if isinstance(experts, int) else experts)
    if any(not isinstance(expert, int) or expert < 0 for expert in ids):
        raise ConfigError(f"experts: expected ids from 0 on, got {ids[:8]}")
    skipped = dict(there)
    ids = [expert for expert in ids if expert not in skipped]
    return len(ids), ids, there


def residents(resident: Residents | None) -> list[tuple[int, list[int]]]:
    """The experts that are on the device already, sorted, and where; no address: in their place."""
    try:
        return [
            (operator.index(expert), [operator.index(address) for address in addresses or ()])
            for expert, addresses in sorted((resident or {}).items())
        ]
    except (AttributeError, TypeError):
        raise ConfigError(
            f"resident: expected a mapping of expert ids to addresses, one per kind (or None), got {resident!r}"
        ) from None


def _owners(experts: Experts, ranks: int) -> list[int]:
    """Which rank owns which expert; none where every rank has a share of every one."""
    if not isinstance(experts, Placement):
        return []
    if experts.ranks != ranks:
        raise ConfigError(f"experts: a placement over {experts.ranks} ranks, the group has {ranks}")
    return list(experts.owners)


def _expect(name: str, value: int, least: int, most: int | None = None) -> None:
    if value < least or (most is not None and value > most):
        wanted = f"{least}..{most}" if most is not None else f"at least {least}"
        raise ConfigError(f"{name}: expected {wanted}, got {value}")


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
