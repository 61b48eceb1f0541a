"""Quantisation formats: which matrices an expert has, how they are stored, how a rank's kinds are cut from them.

A format is one `Format` object. What is stored passes through unchanged but for scales that a format hands out
as float32: those of bfloat16, float16 and ue8m0 become the float32 of the same value.

Sources of the layouts: DeepSeek-V3's README_WEIGHTS.md (blocks), OCP Microscaling v1.0 (groups of 32, ue8m0,
e2m1), https://github.com/vllm-project/compressed-tensors (channels; 4-bit integers, eight to an int32, the
first in the lowest bits, each 8 above its value).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.cuts import Pick
from layercast.geometry import BLOCK, ExpertLayout, OffGrid, WeightFormat, expert_layout, ranks_that_work

FLOAT_SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""dtypes of scales that become float32; bytes (U8) are ue8m0."""

PROJECTIONS = ("gate", "up", "down")
_TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True)
class Role:
    """One matrix of an expert: projection, part (weight, scale or bias), rows, columns in elements.

    `dtypes`: those in which it may be stored. `itemsize`: bytes per element; 0: those of the dtype.
    `convert`: whether it is handed out as float32. `keyword`: what names call the part.
    """

    projection: str
    part: str
    keyword: str
    rows: int
    columns: int
    dtypes: tuple[str, ...]
    itemsize: int = 0
    convert: bool = False


@dataclass(frozen=True)
class Format:
    """A format of expert weights.

    `stored`: dtypes of the weights in a file; `scales`: of the scales. `keywords`: what tensors' names call
    weight and scale. `convert`: whether scales are handed out as float32.
    """

    weights: WeightFormat
    stored: tuple[str, ...]
    scales: tuple[str, ...] = ()
    keywords: tuple[str, str] = ("weight", "scale_inv")
    convert: bool = False
    bias: str | None = None  # torch's name of the biases' dtype, where the experts have some

    @property
    def name(self) -> str:
        """The format's name: fp8_block, fp8_channel, bf16, fp16, mxfp8, mxfp4 or int4."""
        return self.weights.name

    def layout(self, hidden: int, intermediate: int, tp: int, off_grid: OffGrid = "refuse") -> ExpertLayout:
        """What an expert is on one of `tp` ranks; GeometryError where it cannot be cut."""
        return expert_layout(self.weights, hidden, intermediate, tp, off_grid=off_grid, bias=self.bias)

    def ranks_that_work(self, intermediate: int) -> tuple[int, ...]:
        """The T of 1 to 8 for which `layout` cuts an expert of this I on the grid."""
        return ranks_that_work(intermediate, self.weights.block)

    def with_scales(self, dtype: str) -> Format:
        """For formats that hand out scales as they are: with scales of this dtype (BF16 or F16)."""
        return replace(self, weights=replace(self.weights, scale_dtype=_TORCH_NAMES[dtype]), scales=(dtype,))

    def with_bias(self, dtype: str) -> Format:
        """With biases of this dtype (BF16, F16 or F32)."""
        return replace(self, bias=_TORCH_NAMES[dtype])

    def roles(self, hidden: int, intermediate: int) -> tuple[Role, ...]:
        """The matrices of an expert: gate, up and down; their scales; their biases."""
        shapes = {"gate": (intermediate, hidden), "up": (intermediate, hidden), "down": (hidden, intermediate)}
        packed = self.weights.per_item > 1
        found = [
            Role(name, "weight", self.keywords[0], rows, columns // self.weights.per_item, self.stored, int(packed))
            for name, (rows, columns) in shapes.items()
        ]
        if self.scales:
            grids = {name: self.weights.grid(*shape) for name, shape in shapes.items()}
            found += [
                Role(name, "scale", self.keywords[1], rows, columns, self.scales, convert=self.convert)
                for name, (rows, columns) in grids.items()
            ]
        if self.bias is not None:
            stored = next(key for key, value in _TORCH_NAMES.items() if value == self.bias)
            found += [Role(name, "bias", "bias", shape[0], 1, (stored,)) for name, shape in shapes.items()]
        return tuple(found)

    def picks(self, layout: ExpertLayout, rank: int) -> tuple[tuple[Pick, ...], ...]:
        """Per kind of `layout`, which rows and columns of which role are that kind on `rank`."""
        roles = self.roles(layout.hidden, layout.intermediate)
        at = {(role.projection, role.part): number for number, role in enumerate(roles)}
        ir, per_item = layout.intermediate_per_rank, self.weights.per_item
        mine = np.arange(rank * ir, (rank + 1) * ir)

        def rows(part: str, wanted: NDArray[np.intp]) -> tuple[Pick, ...]:
            numbers = (at["gate", part], at["up", part])
            return tuple(Pick(number, wanted, np.arange(roles[number].columns)) for number in numbers)

        def columns(part: str, wanted: NDArray[np.intp]) -> tuple[Pick, ...]:
            number = at["down", part]
            return (Pick(number, np.arange(roles[number].rows), wanted),)

        found = [rows("weight", mine), columns("weight", mine[::per_item] // per_item)]
        if self.scales:
            # the scale of each of the rank's blocks is that of the block in which its first row lies
            fine_rows, fine_columns = _fine(layout, "w13_scale", 0), _fine(layout, "w2_scale", 1)
            block_rows, block_columns = self.weights.block
            found.insert(1, rows("scale", mine[::fine_rows] // block_rows))
            one = np.zeros(1, dtype=np.intp)
            found.append(columns("scale", mine[::fine_columns] // block_columns if block_columns else one))
        if self.bias is not None:
            found += [rows("bias", mine), columns("bias", np.zeros(1, dtype=np.intp))]
        return tuple(found)


def _fine(layout: ExpertLayout, kind: str, axis: int) -> int:
    block = layout.kinds[layout.kind_index(kind)].block
    assert block is not None
    return block[axis]


def _fp8_block(block: tuple[int, int] = BLOCK) -> Format:
    weights = WeightFormat("fp8_block", "float8_e4m3fn", 1, "float32", block)
    return Format(weights, ("F8_E4M3",), FLOAT_SCALES, convert=True)


FP8_BLOCK = _fp8_block()
FP8_CHANNEL = Format(
    WeightFormat("fp8_channel", "float8_e4m3fn", 1, "float32", (1, 0)),
    ("F8_E4M3",),
    ("F32", "BF16", "F16"),
    ("weight", "scale"),
    convert=True,
)
BF16 = Format(WeightFormat("bf16", "bfloat16"), ("BF16",))
FP16 = Format(WeightFormat("fp16", "float16"), ("F16",))
MXFP8 = Format(
    WeightFormat("mxfp8", "float8_e4m3fn", 1, "float8_e8m0fnu", (1, 32), whole_groups=True),
    ("F8_E4M3",),
    ("U8", "F8_E8M0"),
)
MXFP4 = Format(
    WeightFormat("mxfp4", "uint8", 2, "float8_e8m0fnu", (1, 32), whole_groups=True),
    ("U8", "I8"),
    ("U8", "F8_E8M0"),
    ("packed", "scale"),
)


def int4(group: int) -> Format:
    """4-bit integers in groups of `group`, as compressed-tensors packs them; scales stay BF16 or F16."""
    weights = WeightFormat("int4", "uint8", 2, "bfloat16", (1, group), whole_groups=True)
    return Format(weights, ("I32",), ("BF16", "F16"), ("packed", "scale"))


INT4 = int4(32)

FORMATS: Mapping[str, Format] = MappingProxyType(
    {form.name: form for form in (FP8_BLOCK, FP8_CHANNEL, BF16, FP16, MXFP8, MXFP4, INT4)}
)
"""The formats by name, with the blocks and groups that they usually have."""


def with_block(form: Format, block: tuple[int, int]) -> Format:
    """`form` with blocks (or groups) of another size."""
    return replace(form, weights=replace(form.weights, block=block))


def to_float32(data: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """The float32 of the same values, exactly. ue8m0: byte b is 2^(b - 127), and 255 is NaN."""
    if dtype == "F32":
        return data.view(np.float32)
    if dtype == "F16":
        return data.view(np.float16).astype(np.float32)
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    table = np.array([math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan], dtype=np.float32)
    return table[data]
