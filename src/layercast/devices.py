"""Devices by name: `host`, `link:25GB/s,latency=5us,move=no`, `cuda`, `cuda:1,pin=permissive`."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Literal

from layercast import _native
from layercast.config import Environment
from layercast.errors import ConfigError, ResourceError

log = logging.getLogger("layercast")

_RATE = re.compile(r"([0-9.]+) ?([KMG]?)B/s")
_TIME = re.compile(r"([0-9.]+) ?(ns|us|ms|s)")
_RATES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_HINT = (
    "devices: host, link:RATE[,latency=TIME][,move=yes|no][,slow=TIME][,fail=N][,hang=N] such as link:25GB/s,"
    " cuda[:N][,pin=strict|permissive][,batch=yes|no]"
)
_NO_DRIVER = (
    "a machine with an NVIDIA GPU and its driver is needed; without one use device host or link:RATE,"
    " and see layercast doctor"
)


@dataclass(frozen=True)
class Cuda:
    """An NVIDIA GPU as a device.

    `ordinal`: which, as this process counts them (0, 1, ...); None: rank r takes device r. `pin`: host memory that
    cannot be pinned is an error ("strict"), or is copied from all the same, slower, with one warning and its bytes in
    the statistics ("permissive"). `batch`: all copies of a piece in one call of the driver; refused where it
    cannot (before 13.0). `driver`: path of the driver's library; None: $LAYERCAST_CUDA_DRIVER, else libcuda.so.1.
    """

    ordinal: int | None = None
    pin: Literal["strict", "permissive"] = "strict"
    batch: bool = False
    driver: str | None = None

    @property
    def library(self) -> str:
        """The driver's library; empty: the usual one."""
        return Environment.read().cuda_driver if self.driver is None else self.driver

    def open(self, rank: int = 0) -> _native.Device:
        """This rank's device. Raises ResourceError (no driver, no such device, memory), DeviceError, ForkError."""
        ordinal = self.check(rank)
        return _native.cuda_device(self.library, ordinal, strict=self.pin == "strict", batch=self.batch)

    def check(self, rank: int = 0) -> int:
        """Whether there is a driver and the device; returns its ordinal. Uses nothing of the device."""
        try:
            _, devices = _native.cuda_driver(self.library)
        except ResourceError as error:
            error.hint = _NO_DRIVER
            raise
        ordinal = rank if self.ordinal is None else self.ordinal
        if ordinal >= len(devices):
            who = f"rank {rank} takes device {rank}" if self.ordinal is None else f"device {ordinal} was asked for"
            raise ResourceError(
                f"cuda: {who}, this process sees {len(devices)}",
                hint="cuda:0 puts every rank on device 0; CUDA_VISIBLE_DEVICES may hide some",
            )
        return ordinal


def open_device(spec: str | Cuda | _native.Device, rank: int = 0) -> _native.Device:
    """The device that `spec` names; a device object is handed through. One device serves one transport.

    `host`: destination is memory of the rank's own. `link:RATE`: a simulated bus with RATE in B/s, KB/s, MB/s or
    GB/s (powers of 1000; 0 for as fast as memory), `latency` and `slow` per copy in ns, us, ms or s, `move=no` to
    pace without moving bytes, `fail=N` and `hang=N` for the N-th copy (from 1). `cuda`: GPU number `rank`, or
    `cuda:N`; see `Cuda`. Raises ConfigError, and for a GPU what `Cuda.open` raises.
    """
    if isinstance(spec, _native.Device):
        return spec
    chosen = parse_device(spec)
    if isinstance(chosen, Cuda):
        return chosen.open(rank)
    return _native.host_device() if chosen == "host" else _open_link(chosen.partition(":")[2])


def check_device(spec: str | Cuda, ranks: int) -> None:
    """Raises what `open_device` would for any of the ranks, as far as can be known without opening one."""
    chosen = parse_device(spec)
    if isinstance(chosen, Cuda):
        chosen.check(ranks - 1)
    elif chosen != "host":
        _open_link(chosen.partition(":")[2])


def parse_device(spec: str | Cuda) -> str | Cuda:
    """A `cuda` spec as its object; the others as they are. Raises ConfigError for an unknown one."""
    if isinstance(spec, Cuda):
        return spec
    if re.match(r"cuda(?![A-Za-z])", spec):
        return _parse_cuda(spec)
    if spec == "host" or spec.startswith("link:"):
        return spec
    raise ConfigError(f"device {spec!r} is not known", hint=_HINT)


def pin(device: _native.Device, address: int, nbytes: int, what: str) -> None:
    """Pins host memory for the device; where that may fail and does, says so once per device."""
    _, before, _ = device.pinned
    device.pin(address, nbytes)
    _, unpinned, why = device.pinned
    if unpinned and not before:
        log.warning("%s: %d bytes are copied from unpinned memory, which is slower: %s", what, unpinned, why)


def _parse_cuda(spec: str) -> Cuda:
    place, *options = spec.split(",")
    number = re.fullmatch(r"cuda(?::(\d+))?", place)
    if number is None:
        raise ConfigError(f"cuda device: {place!r} is not understood", hint=_HINT)
    values = {"pin": "strict", "batch": "no"}
    allowed = {"pin": ("strict", "permissive"), "batch": ("yes", "no")}
    for option in options:
        key, _, value = option.partition("=")
        if value not in allowed.get(key, ()):
            raise ConfigError(f"cuda device: option {option!r} is not understood", hint=_HINT)
        values[key] = value
    return Cuda(
        ordinal=None if number[1] is None else int(number[1]),
        pin="permissive" if values["pin"] == "permissive" else "strict",
        batch=values["batch"] == "yes",
    )


def _open_link(arguments: str) -> _native.Device:
    rate, *options = arguments.split(",")
    values: dict[str, float] = {"latency": 0, "slow": 0, "fail": 0, "hang": 0}
    move = True
    for option in options:
        key, _, value = option.partition("=")
        if key == "move" and value in ("yes", "no"):
            move = value == "yes"
        elif key in ("latency", "slow"):
            values[key] = _measure(f"{key}={value}", value, _TIME, _TIMES)
        elif key in ("fail", "hang") and value.isdecimal():
            values[key] = int(value)
        else:
            raise ConfigError(f"link device: option {option!r} is not understood", hint=_HINT)
    bytes_per_second = 0.0 if rate == "0" else _measure("rate", rate, _RATE, _RATES)
    return _native.link_device(
        bytes_per_second,
        latency_ns=int(values["latency"]),
        move=move,
        slow_ns=int(values["slow"]),
        fail_at=int(values["fail"]),
        hang_at=int(values["hang"]),
    )


def _measure(what: str, text: str, pattern: re.Pattern[str], units: dict[str, float]) -> float:
    found = pattern.fullmatch(text)
    try:
        if found is not None:
            return float(found[1]) * units[found[2]]
    except ValueError:
        found = None
    raise ConfigError(f"link device: {what} {text!r} is not understood", hint=_HINT)
