"""One family of exceptions, rooted in `LayercastError`.

Every error that crosses ranks carries the same attributes on every rank: `code` (see `Code`), `rank` and `pid` of
the process that failed, `epoch`, `layer` and `expert` it was about, and `statistics` of the layer as far as it came.
Unknown numbers are -1 (rank, layer, expert) or 0 (pid, epoch).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any


class Code(enum.IntEnum):
    """Causes, as they stand in the control block. 1 to 6 are version 2's; above 100 are this library's own."""

    NONE = 0
    PROTOCOL = 1
    TIMEOUT = 2
    DEVICE_INIT = 3
    DEVICE_COPY = 4
    WRITER = 5
    CLOSED_WHILE_ACTIVE = 6
    PEER_DIED = 101
    PEER_CLOSED = 102
    ARGUMENT = 103
    STATE = 104
    SUPERSEDED = 105
    FORKED = 106
    RESOURCE = 107
    INTERRUPTED = 108
    CANCELLED = 109
    CHECKSUM = 110
    MODEL = 111


class LayercastError(Exception):
    """Root of all errors of this library.

    Attributes: `message`, `hint` (what to do, may be empty), `code`, `rank`, `pid`, `epoch`, `layer`, `expert`,
    `statistics` (of the layer so far, may be empty).
    """

    default_code = Code.NONE

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: int | None = None,
        rank: int = -1,
        pid: int = 0,
        epoch: int = 0,
        layer: int = -1,
        expert: int = -1,
        statistics: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = int(self.default_code if code is None else code)
        self.rank = rank
        self.pid = pid
        self.epoch = epoch
        self.layer = layer
        self.expert = expert
        self.statistics: dict[str, Any] = dict(statistics or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(cls: type[LayercastError], message: str, attributes: dict[str, Any]) -> LayercastError:
    """Pickle support: constructors of subclasses may ask for more than the message."""
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error


class ConfigError(LayercastError, ValueError):
    """An argument, option or environment variable is wrong. Nothing was shared or started."""

    default_code = Code.ARGUMENT


class GeometryError(ConfigError):
    """An expert cannot be cut as asked (shape, ranks, quantisation grid)."""


class CheckpointError(ConfigError):
    """A checkpoint is broken, hostile or not understood. `reason` is a stable word for the kind of fault."""

    def __init__(self, message: str, *, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class AgreementError(ConfigError):
    """Ranks of one group were started with different values; both are named."""


class StateError(LayercastError):
    """A call that the state of the layer does not allow. Refused on this rank alone; the group stays healthy."""

    default_code = Code.STATE


class ForkError(StateError):
    """The object was made before a fork and is used in the child."""

    default_code = Code.FORKED


class ResourceError(LayercastError):
    """Memory, file descriptors or another limit of the machine does not suffice; wanted and available are named."""

    default_code = Code.RESOURCE


class GroupError(LayercastError):
    """The group has failed: every rank raises with the same cause."""


class ProtocolError(GroupError):
    """Ranks disagree about a layer, or the shared memory holds what no healthy rank writes."""

    default_code = Code.PROTOCOL


class LayerTimeout(GroupError):
    """A limit ran out: a layer made no progress, or a peer did not come."""

    default_code = Code.TIMEOUT


class JoinTimeout(LayerTimeout):
    """A peer did not arrive within its own, longer limit."""


class DeviceError(GroupError):
    """A device could not be set up, or a copy to it failed."""

    default_code = Code.DEVICE_COPY


class WriterError(GroupError):
    """The writer failed. On rank 0 the writer's own exception is chained."""

    default_code = Code.WRITER


class ClosedWhileActive(GroupError):
    """A rank closed its transport in the middle of a layer."""

    default_code = Code.CLOSED_WHILE_ACTIVE


class PeerDied(GroupError):
    """A rank's process is gone, as the kernel says."""

    default_code = Code.PEER_DIED


class PeerClosed(GroupError):
    """A rank has closed its transport between layers."""

    default_code = Code.PEER_CLOSED


class Superseded(GroupError):
    """The region was initialised again: this object belongs to an older generation."""

    default_code = Code.SUPERSEDED


class Cancelled(GroupError):
    """The layer was given up by `cancel`; `rank` and `pid` say who did. The group stays healthy."""

    default_code = Code.CANCELLED


class ChecksumError(GroupError):
    """A piece arrived on a device with other bytes than rank 0 wrote."""

    default_code = Code.CHECKSUM


class ModelFailed(GroupError):
    """A rank's model failed while it used a layer, so that the ranks cannot go on together."""

    default_code = Code.MODEL


class LaunchError(LayercastError):
    """A process started by `launch` failed; the message shows its rank's traceback."""


BY_CODE: Mapping[int, type[LayercastError]] = {
    Code.PROTOCOL: ProtocolError,
    Code.TIMEOUT: LayerTimeout,
    Code.DEVICE_INIT: DeviceError,
    Code.DEVICE_COPY: DeviceError,
    Code.WRITER: WriterError,
    Code.CLOSED_WHILE_ACTIVE: ClosedWhileActive,
    Code.PEER_DIED: PeerDied,
    Code.PEER_CLOSED: PeerClosed,
    Code.ARGUMENT: ConfigError,
    Code.STATE: StateError,
    Code.SUPERSEDED: Superseded,
    Code.FORKED: ForkError,
    Code.RESOURCE: ResourceError,
    Code.CANCELLED: Cancelled,
    Code.CHECKSUM: ChecksumError,
    Code.MODEL: ModelFailed,
}
