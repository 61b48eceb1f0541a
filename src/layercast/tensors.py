"""Other libraries' objects: tensors as destinations, and streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from layercast import _native
from layercast.errors import ConfigError

#: An address; or a contiguous tensor: torch, CuPy, JAX, numpy, whatever has `__cuda_array_interface__` or DLPack.
Destination: TypeAlias = "int | Any"
#: A handle; or a stream: torch, CuPy, whatever has `__cuda_stream__`.
Stream: TypeAlias = "int | Any"


def addresses(destinations: Sequence[Destination], wanted: Sequence[int]) -> tuple[int, ...]:
    """The address of each destination, which must hold as many bytes as wanted.

    An address is taken as it is. Raises ConfigError: not contiguous, too small, or nothing that has an address.
    """
    return tuple(_address(f"destinations[{i}]", *pair) for i, pair in enumerate(zip(destinations, wanted, strict=True)))


def _address(name: str, what: Destination, wanted: int) -> int:
    if isinstance(what, int):
        return what
    address, nbytes, contiguous = _extent(name, what)
    if not contiguous:
        raise ConfigError(f"{name}: expected a contiguous tensor, this one has gaps or another order")
    if nbytes < wanted:
        raise ConfigError(f"{name}: expected num_experts x bytes = {wanted} bytes, this tensor has {nbytes}")
    return address


def _extent(name: str, what: Any) -> tuple[int, int, bool]:
    """Address, bytes, contiguous."""
    try:
        interface = getattr(what, "__cuda_array_interface__", None)
    except (AttributeError, TypeError, RuntimeError):
        interface = None  # torch: a tensor on the host, or of a type that the interface does not know
    if interface is not None:
        return _of_interface(interface)
    if not hasattr(what, "__dlpack__"):
        raise ConfigError(f"{name}: expected an address or a tensor, got {type(what).__name__}")
    try:
        address, nbytes, contiguous, _, _ = _native.describe_array(what)
    except (TypeError, RuntimeError, BufferError) as error:
        raise ConfigError(f"{name}: {error}", hint="pass a view as uint8, or its address") from error
    return address, nbytes, contiguous


def _of_interface(interface: dict[str, Any]) -> tuple[int, int, bool]:
    shape = tuple(interface["shape"])
    itemsize = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    contiguous, expected = True, itemsize
    for length, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        contiguous = contiguous and (length == 1 or stride == expected)
        expected *= length
    return int(interface["data"][0]), int(np.prod(shape, dtype=np.int64)) * itemsize, contiguous


def stream_handle(stream: Stream) -> int:
    """The driver's handle of a stream. Raises ConfigError for what is none."""
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):  # torch; CuPy
        if isinstance(value := getattr(stream, attribute, None), int):
            return value
    raise ConfigError(f"stream: expected a handle or a CUDA stream, got {type(stream).__name__}")
