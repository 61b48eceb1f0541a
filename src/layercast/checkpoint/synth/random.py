"""Random tensors: each has numbers of its own, which only its name and the seed determine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.safetensors_writer import TensorSpec

Shape = tuple[int, ...]
Maker = Callable[[int], NDArray[np.generic]]
"""Makes the bytes of a tensor from a seed."""


def generator(name: str, seed: int) -> np.random.Generator:
    """Numbers that do not depend on the other tensors, whatever their sizes."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def normal(name: str, shape: Shape, seed: int) -> TensorSpec:
    """bfloat16, normally distributed with a deviation of 0.02."""

    def make() -> NDArray[np.uint16]:
        values = generator(name, seed).normal(0, 0.02, shape).astype(np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    return TensorSpec(name, "BF16", shape, make)


def constant(name: str, shape: Shape, dtype: str, value: float) -> TensorSpec:
    """BF16 or F32, all `value`."""

    def make() -> NDArray[np.generic]:
        values = np.full(shape, value, dtype=np.float32)
        return values if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)

    return TensorSpec(name, dtype, shape, make)


def _bytes(name: str, count: int, seed: int) -> NDArray[np.uint8]:
    # bytes() is several times faster than integers()
    return np.frombuffer(bytearray(generator(name, seed).bytes(count)), dtype=np.uint8)


def codes(name: str, dtype: str, shape: Shape, seed: int, *, e4m3: bool) -> TensorSpec:
    """Any bytes; of e4m3 those that are numbers."""
    count = math.prod(shape) * (4 if dtype == "I32" else 1)

    def make() -> NDArray[np.uint8]:
        found = _bytes(name, count, seed)
        if e4m3:
            found -= (found & 0x7F == 0x7F).astype(np.uint8)  # 0x7f and 0xff are NaN; one below is 448
        return found

    return TensorSpec(name, dtype, shape, make)


def plain(name: str, dtype: str, shape: Shape, seed: int) -> TensorSpec:
    """BF16 or F16 of either sign between 2^-7 and 2^-3."""
    keep, exponent = (0x81FF, 0x3C00) if dtype == "BF16" else (0x8FFF, 0x2000)

    def make() -> NDArray[np.uint16]:
        found = _bytes(name, 2 * math.prod(shape), seed).view(np.uint16)
        return (found & np.uint16(keep)) | np.uint16(exponent)

    return TensorSpec(name, dtype, shape, make)


def scales(name: str, dtype: str, shape: Shape, seed: int, *, around: float) -> TensorSpec:
    """Positive scales between `around` and twice that; bytes are ue8m0: powers of two, some lower, some higher."""
    count = math.prod(shape)

    def make() -> NDArray[np.generic]:
        if dtype == "U8":
            first = round(math.log2(around)) + 127
            return generator(name, seed).integers(first - 1, first + 2, shape, dtype=np.uint8)
        steps = generator(name, seed).permutation(count) + generator(name + " ", seed).uniform(0.1, 0.9)
        values = (around * (1 + steps / count)).astype(np.float32).reshape(shape)
        return values if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16)

    return TensorSpec(name, dtype, shape, make)
