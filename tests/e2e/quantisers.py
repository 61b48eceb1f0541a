"""Quantisers for tests: a bfloat16 matrix to a format's codes and scales. Written anew, from the formats' papers.

Each returns (weight, scale) as torch tensors in the shapes of the files. `test_quantisers.py` holds them against
compressed-tensors and torchao.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
_LARGEST = 448.0  # of e4m3


def _codes(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)


def fp8_block(matrix: torch.Tensor) -> Pair:
    """A float32 scale per 128 x 128, the largest magnitude over 448 (DeepSeek-V3)."""
    rows, columns = matrix.shape
    grid = (math.ceil(rows / 128), math.ceil(columns / 128))
    scales, out = torch.empty(grid), torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(grid[0]):
        for j in range(grid[1]):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            block = matrix[at].float()
            scales[i, j] = block.abs().max() / _LARGEST
            out[at] = _codes(block / scales[i, j])
    return out, scales


def fp8_channel(matrix: torch.Tensor) -> Pair:
    """A bfloat16 scale per row."""
    scale = (matrix.float().abs().amax(dim=1, keepdim=True) / _LARGEST).to(torch.bfloat16)
    return _codes(matrix.float() / scale.float()), scale


def _shared_exponents(matrix: torch.Tensor, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """OCP Microscaling 6.3: groups of 32; the exponent of the largest magnitude less that of the format's."""
    groups = matrix.float().reshape(matrix.shape[0], -1, 32)
    exponent = torch.frexp(groups.abs().amax(dim=-1)).exponent - 1 - largest
    return torch.ldexp(groups, -exponent[..., None]), (exponent + 127).clamp(0, 254).to(torch.uint8)


def mxfp8(matrix: torch.Tensor) -> Pair:
    """A ue8m0 byte per 32 of a row; e4m3 reaches 2^8."""
    groups, scale = _shared_exponents(matrix, 8)
    return _codes(groups).reshape(matrix.shape), scale


def mxfp4(matrix: torch.Tensor) -> Pair:
    """The same with e2m1, which reaches 2^2; two to a byte, the first in the low half."""
    groups, scale = _shared_exponents(matrix, 2)
    edges = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    magnitude = groups.abs().contiguous()
    # to the nearest; half way to the even code: 0.25 falls to 0, 0.75 rises to 1
    up, down = torch.bucketize(magnitude, edges, right=True), torch.bucketize(magnitude, edges)
    code = torch.where(up % 2 == 0, up, down)
    code = (code | (torch.signbit(groups).long() << 3)).reshape(matrix.shape[0], -1, 2)
    return (code[..., 0] | code[..., 1] << 4).to(torch.uint8), scale


def int4(matrix: torch.Tensor) -> Pair:
    """Groups of 32, symmetric: a bfloat16 scale, values -8 to 7, eight to an int32, the first in the lowest bits."""
    groups = matrix.float().reshape(matrix.shape[0], -1, 32)
    scale = (groups.abs().amax(dim=-1) / 7.5).to(torch.bfloat16)
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7).to(torch.int64) + 8
    words = (codes.reshape(matrix.shape[0], -1, 8) << (4 * torch.arange(8))).sum(dim=-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32), scale


QUANTISERS: dict[str, Callable[[torch.Tensor], Pair]] = {
    "fp8_block": fp8_block,
    "fp8_channel": fp8_channel,
    "mxfp8": mxfp8,
    "mxfp4": mxfp4,
    "int4": int4,
}
