"""What an expert is, in bytes, per format and rank.

An expert is gate (w1), up (w3) and down (w2), with hidden size H and intermediate size I. Of T
tensor-parallel ranks each holds Ir = I / T: rank r owns rows [r*Ir, (r+1)*Ir) of gate and up and the same
columns of down. The kinds of an expert are w13 (gate rows, then up rows) and w2, with their scales w13_scale
and w2_scale where a format has some, and biases where a model has some.

Nothing here knows files or devices; `layercast.checkpoint` finds the bytes that these shapes describe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Literal, TypeAlias

from layercast.errors import GeometryError

__all__ = [
    "BLOCK",
    "SHAPES",
    "ExpertLayout",
    "Kind",
    "OffGrid",
    "Shape",
    "WeightFormat",
    "expert_layout",
    "fp8_block_layout",
    "ranks_that_work",
]

BLOCK = (128, 128)
"""Rows and columns of a block with one scale, unless config.json says otherwise."""

OffGrid: TypeAlias = Literal["refuse", "finer"]
"""What becomes of a slice that begins or ends inside a block: refused, or given scales on a finer grid."""

_ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {"float8_e4m3fn": 1, "float8_e8m0fnu": 1, "uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}
)
_LIMIT = 1 << 63  # sizes and their sums travel as signed 64-bit numbers


@dataclass(frozen=True)
class WeightFormat:
    """How weights are stored on a device, and how many share a scale.

    `dtype`: of the weights, `per_item` of them in one element. `scale_dtype`: None where there are no scales.
    `block`: rows and columns of the weight that share one scale; columns 0: a whole row. `whole_groups`: rows
    must be whole groups of `block[1]`, as the format has no shorter ones.
    """

    name: str
    dtype: str
    per_item: int = 1
    scale_dtype: str | None = None
    block: tuple[int, int] = (1, 1)
    whole_groups: bool = False

    def grid(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of the scales of a weight [rows, columns]; the last block may be a part of one."""
        return -(-rows // self.block[0]), -(-columns // (self.block[1] or columns))


@dataclass(frozen=True)
class Kind:
    """One tensor of an expert on one rank: name, shape, and dtype in torch's spelling.

    `block`, of scales: rows and columns of the rank's weight that share one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block: tuple[int, int] | None = None

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
    """An expert as one rank holds it; `tp` is the number of ranks that share it.

    `block`: rows and columns per scale in the checkpoint. Where `off_grid="finer"` cut inside a block, a rank's
    scales stand for smaller ones: `kinds[...].block` says which, for each kind of scales.

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


def expert_layout(
    form: WeightFormat,
    hidden: int,
    intermediate: int,
    tp: int,
    *,
    off_grid: OffGrid = "refuse",
    bias: str | None = None,
) -> ExpertLayout:
    """Layout of an expert of format `form` on one of `tp` ranks.

    With P = `form.per_item` and blocks of b0 x b1: w13 [2*Ir, H/P], w13_scale [2*ceil(Ir/b0), ceil(H/b1)],
    w2 [H, Ir/P], w2_scale [ceil(H/b0), ceil(Ir/b1)]; one scale per row: w13_scale [2*Ir], w2_scale [H]. The
    scales of the fused w13 are counted per half. `bias`: the dtype of w13_bias [2*Ir] and w2_bias [H], which
    come last; w2_bias is whole on every rank and to be added once.

    Cut over ranks, Ir must lie on the block grid; whole (tp = 1) the last block may be a part of one. Off the
    grid, `off_grid="finer"` counts scales per gcd(b0, Ir) rows of gate and up and per gcd(b1, Ir) columns of
    down: each is the scale of the block that it lies in, so dequantised values stay what they are. Raises
    GeometryError naming I, T, Ir, the block and the T that work.
    """
    _check_sizes(hidden, intermediate, tp, form.block)
    _check_groups(form, hidden, intermediate)
    rows, columns = _cut_block(form, intermediate, tp, off_grid)
    ir = intermediate // tp
    kinds = [Kind("w13", (2 * ir, hidden // form.per_item), form.dtype)]
    if form.scale_dtype is not None:
        kinds += _w13_scale(form, form.scale_dtype, ir, hidden, rows)
    kinds.append(Kind("w2", (hidden, ir // form.per_item), form.dtype))
    if form.scale_dtype is not None:
        kinds += _w2_scale(form, form.scale_dtype, ir, hidden, columns)
    if bias is not None:
        kinds += [Kind("w13_bias", (2 * ir,), bias), Kind("w2_bias", (hidden,), bias)]
    return ExpertLayout(tuple(kinds), hidden, intermediate, tp, form.name, form.block)


def _w13_scale(form: WeightFormat, dtype: str, ir: int, hidden: int, rows: int) -> list[Kind]:
    if form.block[1] == 0:
        return [Kind("w13_scale", (2 * -(-ir // rows),), dtype, (rows, hidden))]
    shape = (2 * -(-ir // rows), -(-hidden // form.block[1]))
    return [Kind("w13_scale", shape, dtype, (rows, form.block[1]))]


def _w2_scale(form: WeightFormat, dtype: str, ir: int, hidden: int, columns: int) -> list[Kind]:
    rows = form.block[0]
    if form.block[1] == 0:
        return [Kind("w2_scale", (-(-hidden // rows),), dtype, (rows, ir))]
    return [Kind("w2_scale", (-(-hidden // rows), -(-ir // columns)), dtype, (rows, columns))]


def fp8_block_format(block: tuple[int, int] = BLOCK) -> WeightFormat:
    """e4m3 weights, one float32 scale per block: DeepSeek-V3's layout."""
    return WeightFormat("fp8_block", "float8_e4m3fn", 1, "float32", block)


def fp8_block_layout(hidden: int, intermediate: int, tp: int, *, block: tuple[int, int] = BLOCK) -> ExpertLayout:
    """`expert_layout` of block FP8: e4m3 weights, one float32 scale per block of `block[0]` x `block[1]`."""
    return expert_layout(fp8_block_format(block), hidden, intermediate, tp)


def ranks_that_work(intermediate: int, block: tuple[int, int] = BLOCK, *, limit: int = 8) -> tuple[int, ...]:
    """The T in 1..limit that cut I = `intermediate` on the block grid; 1 always does, as nothing is cut."""
    grid = math.lcm(block[0], block[1] or 1)
    return tuple(tp for tp in range(1, limit + 1) if tp == 1 or intermediate % (tp * grid) == 0)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_sizes(hidden: int, intermediate: int, tp: int, block: tuple[int, int]) -> None:
    named = {"H": hidden, "I": intermediate, "T": tp, "block rows": block[0], "block columns": block[1]}
    if block[1] == 0:
        del named["block columns"]  # a scale per row
    for name, value in named.items():
        if not _is_positive(value):
            raise GeometryError(f"{name} is {value!r}, expected a whole number of at least 1")


def _check_groups(form: WeightFormat, hidden: int, intermediate: int) -> None:
    for name, size in (("H", hidden), ("I", intermediate)):
        if form.whole_groups and size % form.block[1]:
            raise GeometryError(
                f"{name} = {size} is no whole number of groups of {form.block[1]}, which {form.name} has only whole"
            )
        if size % form.per_item:
            raise GeometryError(f"{name} = {size} does not fill whole bytes of {form.per_item} weights ({form.name})")


def _cut_block(form: WeightFormat, intermediate: int, tp: int, off_grid: OffGrid) -> tuple[int, int]:
    """Rows of gate and up, and columns of down, that share a scale on a rank. GeometryError where none do."""
    if off_grid not in ("refuse", "finer"):
        raise GeometryError(f"off_grid is {off_grid!r}, expected 'refuse' or 'finer'")
    block = (form.block[0], form.block[1] or 1)  # a scale per row: columns are cut anywhere
    if tp == 1 or intermediate % (tp * math.lcm(*block)) == 0:
        return block
    ir, whole = intermediate // tp, intermediate % tp == 0
    if whole and ir % form.per_item == 0 and off_grid == "finer":
        return math.gcd(block[0], ir), math.gcd(block[1], ir)
    if not whole:
        fault = f"Ir = I / T = {intermediate / tp:.2f} is not a whole number of rows"
    elif ir % form.per_item:
        fault = f"Ir = I / T = {ir} columns end inside a byte of {form.per_item} weights"
    else:
        fault = f"Ir = I / T = {ir} rows do not end on a block's edge"
    work = ", ".join(str(value) for value in ranks_that_work(intermediate, form.block))
    finer = "off_grid='finer' (stream --finer) allows this one; " if whole and ir % form.per_item == 0 else ""
    size = f"{form.block[0]} x {form.block[1] or 'row'}"
    raise GeometryError(
        f"I = {intermediate} cannot be cut for T = {tp} ranks: {fault} (block {size})",
        hint=f"{finer}T of 1 to 8 that work for I = {intermediate}: {work}",
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
