"""
The native core of layercast. Not public: use layercast's Python names.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def identity() -> tuple[int, int, int]:
    """
    This process: pid, start time in clock ticks, pid namespace (0: unknown).
    """

def initialize_control(address: int, nbytes: int, tp_size: int, version: int, ranks: int, slots: int) -> None: ...

def control_bytes(ranks: int, slots: int) -> int: ...

VERSION_2_BYTES: int = 8192

VERSION_2_RANKS: int = 8

VERSION_2_SLOTS: int = 2

MAX_RANKS: int = 64

MAX_SLOTS: int = 256

MAX_EPOCH: int = 9223372036854775807

def describe_array(array: Annotated[NDArray, dict(writable=False)]) -> tuple:
    """
    DLPack: address, bytes, whether rows lie one behind the other, on a CUDA device, which.
    """

def measure_copies(device: Device, from_: int, to: int, bytes: int, piece_bytes: int, rounds: int) -> int:
    """
    Nanoseconds that copies from pinned memory take, nothing else being in the way.
    """

def cuda_device(library: str, ordinal: int, strict: bool = True, batch: bool = False, patience_ms: int = 10000) -> Device:
    """A GPU; an empty library is the usual one."""

def cuda_driver(library: str) -> tuple:
    """
    The driver's version, and (ordinal, name, PCI bus id, bytes of memory) of every device.
    """

class Device:
    """Where a rank's experts go: destination memory and copies to it."""

    def describe(self) -> str: ...

    @property
    def moves(self) -> bool: ...

    @property
    def prompt(self) -> bool: ...

    def close(self) -> None:
        """Gives back what it holds, destination memory too. Idempotent."""

    @property
    def readable(self) -> bool: ...

    @property
    def bus_id(self) -> str: ...

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """DLPack's type and number of the device."""

    @property
    def pinned(self) -> tuple:
        """Bytes that are pinned, bytes that could not be, and why."""

    def allocate(self, bytes: int) -> int:
        """Memory that lives as long as the device."""

    def adopt(self, address: int, bytes: int) -> None: ...

    def read(self, address: int, bytes: int) -> bytes:
        """A copy of what lies there."""

    def write(self, address: int, data: bytes) -> None:
        """
        Puts bytes there and waits for them; while no transport uses the device.
        """

    def pin(self, address: int, bytes: int) -> None: ...

    def unpin(self, address: int) -> None: ...

def dlpack_view(address: int, shape: Sequence[int], code: int, bits: int, device_type: int, device_id: int, owner: object) -> object:
    """A DLPack capsule over this memory, which keeps `owner` alive."""

def host_device() -> Device:
    """Destination in memory of the rank's own."""

def link_device(bytes_per_second: float, latency_ns: int = 0, move: bool = True, slow_ns: int = 0, fail_at: int = 0, hang_at: int = 0) -> Device:
    """
    A simulated bus. 0 bytes per second: as fast as memory; n-th copies to fail or hang count from 1.
    """

class Writer:
    """Fills every rank's share of a piece."""

    def paired(self) -> int: ...

class PythonWriter(Writer):
    @staticmethod
    def views(callable: object) -> PythonWriter: ...

    @staticmethod
    def addresses(callable: object) -> PythonWriter: ...

def memory_writer(address: int, nbytes: int, source_experts: int, kind_bytes: Sequence[int], ranks: int, owner: object | None) -> Writer: ...

def function_writer(function: int, user: int, owner: object | None) -> Writer: ...

def direct_writer() -> Writer: ...

def pattern_writer(seed: int) -> Writer: ...

def block_writer(blocks: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], index: Annotated[NDArray[numpy.uint64], dict(order='C', device='cpu', writable=False)], experts: int, ranks: int, kinds: int, layer: int, owner: object | None) -> Writer: ...

def fill_arena(writer: Writer, layer: int, rank: int, ranks: int, first: int, count: int, kind_bytes: Sequence[int], kinds: Sequence[int]) -> None: ...

def fill_slots(writer: Writer, layer: int, ranks: int, experts: int, kind_bytes: Sequence[int], piece_bytes: int, slots: int, count: int) -> None: ...

def count_wrong_pattern(seed: int, layer: int, rank: int, experts: int, kind_bytes: Sequence[int], destinations: Sequence[int]) -> tuple[int, int]: ...

class Transport:
    def __init__(self, *, control: int, control_bytes: int, rank: int, tp_size: int, kind_bytes: Sequence[int], experts: int, local_slots: Sequence[int], all_slots: Sequence[int], slot_bytes: int, piece_bytes: int, destinations: Sequence[int], device: Device, timeout_ms: int | None, join_timeout_ms: int | None, writer_timeout_ms: int | None, writer_threads: int = 1, cpus: Sequence[int] = [], verify_every: int = 0, trace_events: int = 0, device_layers: int = 1) -> None: ...

    def join(self, epoch: int, layer_id: int, expert_count: int, ids: Sequence[int] | None = None, residents: Sequence[tuple[int, Sequence[int]]] = [], owners: Sequence[int] = [], device_layer: int = 0) -> None:
        """
        Experts: 0 .. expert_count - 1, or `ids`. Residents: (expert, addresses per kind or none).

        Owners: the rank that has expert x whole; `expert_count` are then positions, not experts.
        """

    def cancel(self, epoch: int) -> bool: ...

    def set_arena(self, layer_id: int, kinds: Sequence[int]) -> None: ...

    def trace(self) -> list: ...

    def run(self, epoch: int, layer_id: int, expert_count: int, writer: Writer) -> None: ...

    def wait(self, epoch: int) -> dict: ...

    def stream_wait(self, epoch: int, stream: int) -> None: ...

    def consumed(self, stream: int) -> None: ...

    def close(self) -> None: ...

    def overdue(self, epoch: int, waited_ms: int) -> None:
        """
        Fails the group where a rank has not come to `epoch`; without effect where all are there.
        """

    def statistics(self) -> dict: ...

    def report_death(self, rank: int, pid: int, started: int) -> None: ...

    @property
    def seats(self) -> list: ...

    def fail(self, why: str, layer: int) -> None:
        """Tells every rank that this one has failed outside of this library."""

    @property
    def failed(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def last_epoch(self) -> int: ...

    @property
    def destinations(self) -> list[int]: ...

def cut(kind_bytes: Sequence[int], experts: int, piece_bytes: int, whole_experts: bool, paired: int = 0) -> list:
    """
    The cut of a layer: per piece its runs (expert, kind, offset, bytes, offset in the piece).
    """
