"""What an expert is, in bytes, per format and rank.

An expert is gate (w1), up (w3) and down (w2), with hidden size H and intermediate size I. Of T
tensor-parallel ranks each holds Ir = I / T: rank r owns rows [r*Ir, (r+1)*Ir) of gate and up and the same
columns of down. The kinds of an expert are w13 (gate rows, then up rows), w13_scale, w2 and w2_scale.

Nothing here knows files or devices; `layercast.checkpoint` finds the bytes that these shapes describe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from layercast.errors import GeometryError

__all__ = ["BLOCK", "SHAPES", "ExpertLayout", "Kind", "Shape", "fp8_block_layout", "ranks_that_work"]

BLOCK = (128, 128)
"""Rows and columns of a block with one scale, unless config.json says otherwise."""

_ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {"float8_e4m3fn": 1, "float8_e8m0fnu": 1, "uint8": 1, "bfloat16": 2, "float32": 4}
)
_LIMIT = 1 << 63  # sizes and their sums travel as signed 64-bit numbers


@dataclass(frozen=True)
class Kind:
    """One tensor of an expert on one rank: name, shape, and dtype in torch's spelling."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in _ITEMSIZE:
            raise GeometryError(
                f"kind {self.name} has dtype {self.dtype!r}, which is not known",
                hint=f"known: {', '.join(_ITEMSIZE)}",
            )
        if not self.shape or any(not _is_positive(size) for size in self.shape):
            raise GeometryError(f"kind {self.name} has shape {self.shape}; every size must be at least 1")

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes per expert and rank."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class ExpertLayout:
    """An expert as one rank holds it. `block` is rows and columns per scale; `tp` is the number of ranks.

    Raises GeometryError where the bytes of an expert do not fit 63 bits.
    """

    kinds: tuple[Kind, ...]
    hidden: int
    intermediate: int
    tp: int
    format: str
    block: tuple[int, int]

    def __post_init__(self) -> None:
        if self.nbytes * self.tp >= _LIMIT:
            raise GeometryError(
                f"an expert of H = {self.hidden}, I = {self.intermediate} takes {self.nbytes * self.tp} "
                f"bytes, the limit is 2^63 - 1"
            )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes per kind, in the order of `kinds`."""
        return tuple(kind.nbytes for kind in self.kinds)

    @cached_property
    def nbytes(self) -> int:
        """Bytes per expert and rank, all kinds together."""
        return sum(self.sizes)

    @property
    def intermediate_per_rank(self) -> int:
        """Ir: rows of gate and up, and columns of down, that one rank owns."""
        return self.intermediate // self.tp

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kinds, in order."""
        return tuple(kind.name for kind in self.kinds)

    def kind_index(self, name: str) -> int:
        """Position of the kind called `name`; GeometryError where there is none."""
        if name not in self.names:
            raise GeometryError(f"format {self.format} has no kind {name!r}", hint=f"kinds: {', '.join(self.names)}")
        return self.names.index(name)


def fp8_block_layout(hidden: int, intermediate: int, tp: int, *, block: tuple[int, int] = BLOCK) -> ExpertLayout:
    """Layout of block FP8: e4m3 weights, one float32 scale per block of `block[0]` rows x `block[1]` columns.

    w13 [2*Ir, H], w13_scale [2*ceil(Ir/b0), ceil(H/b1)], w2 [H, Ir], w2_scale [ceil(H/b0), ceil(Ir/b1)]:
    the scales of the fused w13 are counted per half. Cut over ranks, Ir must lie on the block grid; whole
    (tp = 1) the last block may be a part of one. Raises GeometryError naming I, T, Ir, the block and the T
    that work.
    """
    _check_sizes(hidden, intermediate, tp, block)
    _check_cut(intermediate, tp, block)
    ir = intermediate // tp
    rows, columns = block
    kinds = (
        Kind("w13", (2 * ir, hidden), "float8_e4m3fn"),
        Kind("w13_scale", (2 * -(-ir // rows), -(-hidden // columns)), "float32"),
        Kind("w2", (hidden, ir), "float8_e4m3fn"),
        Kind("w2_scale", (-(-hidden // rows), -(-ir // columns)), "float32"),
    )
    return ExpertLayout(kinds, hidden, intermediate, tp, "fp8_block", (rows, columns))


def ranks_that_work(intermediate: int, block: tuple[int, int] = BLOCK, *, limit: int = 8) -> tuple[int, ...]:
    """The T in 1..limit that cut I = `intermediate` on the block grid; 1 always does, as nothing is cut."""
    grid = math.lcm(*block)
    return tuple(tp for tp in range(1, limit + 1) if tp == 1 or intermediate % (tp * grid) == 0)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_sizes(hidden: int, intermediate: int, tp: int, block: tuple[int, int]) -> None:
    named = {"H": hidden, "I": intermediate, "T": tp, "block rows": block[0], "block columns": block[1]}
    for name, value in named.items():
        if not _is_positive(value):
            raise GeometryError(f"{name} is {value!r}, expected a whole number of at least 1")


def _check_cut(intermediate: int, tp: int, block: tuple[int, int]) -> None:
    if tp == 1 or intermediate % (tp * math.lcm(*block)) == 0:
        return
    work = ", ".join(str(value) for value in ranks_that_work(intermediate, block))
    grid = f"{block[0]} x {block[1]}"
    if intermediate % tp:
        fault = f"Ir = I / T = {intermediate / tp:.2f} is not a whole number of rows"
    else:
        fault = f"Ir = I / T = {intermediate // tp} rows do not end on a block's edge"
    raise GeometryError(
        f"I = {intermediate} cannot be cut for T = {tp} ranks: {fault} (block {grid})",
        hint=f"T of 1 to 8 that work for I = {intermediate}: {work}",
    )


@dataclass(frozen=True)
class Shape:
    """A published model's experts: H, I, experts per layer and the MoE layers of the base model."""

    name: str
    hidden: int
    intermediate: int
    experts: int
    layers: range

    def layout(self, tp: int) -> ExpertLayout:
        """The block-FP8 layout of this shape for `tp` ranks; GeometryError where it cannot be cut."""
        return fp8_block_layout(self.hidden, self.intermediate, tp)


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            Shape("glm-5-next", 4096, 2048, 288, range(3, 45)),
            Shape("deepseek-v3", 7168, 2048, 256, range(3, 61)),
            Shape("qwen3-235b", 4096, 1536, 128, range(94)),
            Shape("qwen3-30b", 2048, 768, 128, range(48)),
            Shape("minimax-m2", 3072, 1536, 256, range(62)),
        )
    }
)
"""Sizes as the models' config.json give them: hidden_size, moe_intermediate_size, experts, layers."""
