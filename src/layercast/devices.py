"""Devices by name: `host`, `link:25GB/s,latency=5us,move=no`."""

from __future__ import annotations

import re

from layercast import _native
from layercast.errors import ConfigError

_RATE = re.compile(r"([0-9.]+) ?([KMG]?)B/s")
_TIME = re.compile(r"([0-9.]+) ?(ns|us|ms|s)")
_RATES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_HINT = "devices: host, link:RATE[,latency=TIME][,move=yes|no][,slow=TIME][,fail=N][,hang=N], such as link:25GB/s"


def open_device(spec: str | _native.Device) -> _native.Device:
    """The device that `spec` names; a device object is handed through. One device serves one transport.

    `host`: destination is memory of the rank's own. `link:RATE`: a simulated bus with RATE in B/s, KB/s, MB/s or
    GB/s (powers of 1000; 0 for as fast as memory), `latency` and `slow` per copy in ns, us, ms or s, `move=no` to
    pace without moving bytes, `fail=N` and `hang=N` for the N-th copy (from 1). Raises ConfigError.
    """
    if isinstance(spec, _native.Device):
        return spec
    name, _, arguments = spec.partition(":")
    if name == "host" and not arguments:
        return _native.host_device()
    if name == "link":
        return _open_link(arguments)
    if name == "cuda":
        raise ConfigError("device 'cuda': this build has no CUDA device", hint=_HINT)
    raise ConfigError(f"device {spec!r} is not known", hint=_HINT)


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
