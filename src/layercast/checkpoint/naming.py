"""How tensors of experts are called, and where one expert's matrices lie in them.

Two namings: one tensor per expert and projection, or three-dimensional tensors that hold all experts of a
layer. A `Naming` turns a layer's names into `Operand`s, which know strides and addresses but no names.

Reasons of CheckpointError raised here: those of `checks`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.checks import check_dtype, check_shape, refuse_missing
from layercast.checkpoint.cuts import Strides
from layercast.checkpoint.formats import PROJECTIONS, Role
from layercast.checkpoint.index import TensorIndex
from layercast.checkpoint.safetensors_file import DTYPE_BITS, TensorInfo

PER_EXPERT_SUFFIXES = {
    "weight": "weight",
    "packed": "weight_packed",
    "scale_inv": "weight_scale_inv",
    "scale": "weight_scale",
    "bias": "bias",
    "shape": "weight_shape",  # of a packed weight: config.json says the same
}
FUSED_SUFFIXES = {"weight": "", "packed": "_blocks", "scale_inv": "_scale_inv", "scale": "_scales", "bias": "_bias"}
"""What follows the projection's name, by keyword. A fused `_scale` is taken for `_scales`."""


class ExpertName(NamedTuple):
    """The parts of an expert tensor's name. `expert` is -1 in a fused tensor; `keyword` None if not known."""

    prefix: str
    layer: int
    expert: int
    projection: str
    keyword: str | None


@dataclass(frozen=True)
class Place:
    """A MoE layer among the names: prefix, number, experts; `suffixes`: keyword -> what names end with."""

    prefix: str
    layer: int
    experts: int
    suffixes: Mapping[str, str]


@dataclass(frozen=True)
class Operand:
    """One role's matrix in every expert of a layer.

    `addresses`: uint64 [experts], of the first element. `matrix(expert)`: the same as a view uint8
    [rows, columns, itemsize].
    """

    role: Role
    dtype: str
    strides: Strides
    addresses: NDArray[np.uint64]
    matrix: Callable[[int], NDArray[np.uint8]] = field(repr=False)


class Naming(ABC):
    """How a checkpoint names the experts' tensors."""

    path: str

    @abstractmethod
    def parse(self, name: str) -> ExpertName | None:
        """The parts of an expert tensor's name; None for other tensors."""

    @abstractmethod
    def suffix_of(self, name: str) -> str:
        """What follows the projection in a name that `parse` understands."""

    @abstractmethod
    def example(self) -> str:
        """What a name looks like, for errors."""

    def module_of(self, prefix: str, layer: int) -> str:
        """The module that holds a layer's experts, as lists of modules in config.json name it."""
        return f"{prefix}layers.{layer}.{self.path}"

    @abstractmethod
    def weight_name(self, place: Place, keyword: str) -> str:
        """The name of the first expert's gate (or of the tensor that holds all gates)."""

    @abstractmethod
    def operands(self, index: TensorIndex, place: Place, roles: tuple[Role, ...]) -> tuple[Operand, ...]:
        """Find and check the tensors of a layer. Raises CheckpointError, reasons above."""


class PerExpert(Naming):
    """`{prefix}layers.L.{path}.E.{word}.{suffix}`: a matrix per expert and projection, [out, in]."""

    def __init__(self, path: str, words: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        self.path = path
        self._words = dict(zip(PROJECTIONS, words, strict=True))
        self._back = {word: projection for projection, word in self._words.items()}
        self._keywords = {suffix: keyword for keyword, suffix in PER_EXPERT_SUFFIXES.items()} | {"scale": "scale"}
        inner = "|".join(map(re.escape, words))
        self._match = re.compile(rf"((?:[^.]+\.)*?)layers\.(\d+)\.{re.escape(path)}\.(\d+)\.({inner})\.(.+)").fullmatch

    def parse(self, name: str) -> ExpertName | None:
        if (hit := self._match(name)) is None:
            return None
        return ExpertName(hit[1], int(hit[2]), int(hit[3]), self._back[hit[4]], self._keywords.get(hit[5]))

    def suffix_of(self, name: str) -> str:
        hit = self._match(name)
        return hit[5] if hit is not None else ""

    def example(self) -> str:
        return f"model.layers.N.{self.path}.N.{self._words['gate']}.weight"

    def weight_name(self, place: Place, keyword: str) -> str:
        return self._name(place, 0, "gate", keyword)

    def _name(self, place: Place, expert: int, projection: str, keyword: str) -> str:
        suffix = place.suffixes.get(keyword, PER_EXPERT_SUFFIXES[keyword])
        return f"{place.prefix}layers.{place.layer}.{self.path}.{expert}.{self._words[projection]}.{suffix}"

    def operands(self, index: TensorIndex, place: Place, roles: tuple[Role, ...]) -> tuple[Operand, ...]:
        named = [
            [self._name(place, expert, role.projection, role.keyword) for expert in range(place.experts)]
            for role in roles
        ]
        refuse_missing(index, [(name, role.part) for names, role in zip(named, roles, strict=True) for name in names])
        return tuple(self._operand(index, place, role, names) for role, names in zip(roles, named, strict=True))

    def _operand(self, index: TensorIndex, place: Place, role: Role, names: list[str]) -> Operand:
        first: TensorInfo | None = None
        for name in names:
            info = index.find(name)
            assert info is not None
            if first is None:
                first = info
                check_dtype(place.layer, name, info.dtype, role.part, role.dtypes)
                width = _width(role, info.dtype)
                check_shape(name, info.shape, _shapes((role.rows,), role, info.dtype))
            elif info.dtype != first.dtype:
                check_dtype(place.layer, name, info.dtype, role.part, (first.dtype,))
            elif info.shape != first.shape:
                check_shape(name, info.shape, [first.shape])
        assert first is not None
        return Operand(
            role,
            first.dtype,
            Strides(role.rows, role.columns, width, role.columns * width, width),
            np.array([index.address_of(name) for name in names], dtype=np.uint64),
            lambda expert: index.bytes_of(names[expert]).reshape(role.rows, role.columns, width),
        )


class Fused(Naming):
    """`{prefix}layers.L.{path}.{gate_up_proj,down_proj}`: all experts of a layer in one tensor, expert first.

    `interleaved`: gate and up take turns, gate first; else all gates come first. `transposed`: weights lie as
    [expert, in, out]; None: as their shapes say. Packed weights are never transposed.
    """

    def __init__(self, path: str, *, interleaved: bool = False, transposed: bool | None = None) -> None:
        self.path = path
        self.interleaved = interleaved
        self.transposed = transposed
        self._keywords = {suffix: keyword for keyword, suffix in FUSED_SUFFIXES.items()} | {
            "_scale": "scale",
            ".weight": "weight",
        }
        self._match = re.compile(
            rf"((?:[^.]+\.)*?)layers\.(\d+)\.{re.escape(path)}\.(gate_up|down)_proj((?:[._].+)?)"
        ).fullmatch

    def parse(self, name: str) -> ExpertName | None:
        if (hit := self._match(name)) is None:
            return None
        return ExpertName(hit[1], int(hit[2]), -1, hit[3], self._keywords.get(hit[4]))

    def suffix_of(self, name: str) -> str:
        hit = self._match(name)
        return hit[4] if hit is not None else ""

    def example(self) -> str:
        return f"model.layers.N.{self.path}.gate_up_proj"

    def weight_name(self, place: Place, keyword: str) -> str:
        return self._name(place, "gate", keyword)

    def _name(self, place: Place, projection: str, keyword: str) -> str:
        word = "down_proj" if projection == "down" else "gate_up_proj"
        suffix = place.suffixes.get(keyword, FUSED_SUFFIXES[keyword])
        return f"{place.prefix}layers.{place.layer}.{self.path}.{word}{suffix}"

    def operands(self, index: TensorIndex, place: Place, roles: tuple[Role, ...]) -> tuple[Operand, ...]:
        names = [self._name(place, role.projection, role.keyword) for role in roles]
        refuse_missing(index, [(name, role.part) for name, role in zip(names, roles, strict=True)])
        sideways = self._sideways(index, place, roles, names)
        return tuple(self._operand(index, place, role, name, sideways) for role, name in zip(roles, names, strict=True))

    def _stored(self, role: Role) -> int:
        """Rows of the tensor per expert: gate and up lie together."""
        return role.rows * (1 if role.projection == "down" else 2)

    def _sideways(self, index: TensorIndex, place: Place, roles: tuple[Role, ...], names: list[str]) -> bool:
        """Whether the layer's weights are transposed. Of gate_up and down at least one shape tells."""
        weights = [(role, name) for role, name in zip(roles, names, strict=True) if role.part == "weight"]
        if weights[0][0].keyword == "packed":
            return False
        if self.transposed is not None:
            return self.transposed
        for sideways in (False, True):
            if all(
                (info := index.find(name)) is not None
                and info.shape in _fused_shapes(place.experts, self._stored(role), role, info.dtype, sideways)
                for role, name in weights
            ):
                return sideways
        return False  # neither: the shape is refused where it is checked

    def _operand(self, index: TensorIndex, place: Place, role: Role, name: str, sideways: bool) -> Operand:
        info = index.find(name)
        assert info is not None
        check_dtype(place.layer, name, info.dtype, role.part, role.dtypes)
        stored, width = self._stored(role), _width(role, info.dtype)
        turned = sideways and role.part != "bias"
        check_shape(name, info.shape, _fused_shapes(place.experts, stored, role, info.dtype, turned))
        row, column = (width, stored * width) if turned else (role.columns * width, width)
        every, first = 1, 0
        if role.projection != "down":
            every = 2 if self.interleaved else 1
            first = 0 if role.projection == "gate" else (1 if self.interleaved else role.rows)
        start = index.address_of(name) + first * row
        each = stored * role.columns * width

        def matrix(expert: int) -> NDArray[np.uint8]:
            whole = index.bytes_of(name).reshape(place.experts, -1)[expert]
            out: NDArray[np.uint8]
            if turned:
                out = whole.reshape(role.columns, stored, width).swapaxes(0, 1)
            else:
                out = whole.reshape(stored, role.columns, width)
            mine: NDArray[np.uint8] = out[first : first + (role.rows - 1) * every + 1 : every]
            return mine

        return Operand(
            role,
            info.dtype,
            Strides(role.rows, role.columns, width, row * every, column),
            start + np.arange(place.experts, dtype=np.uint64) * np.uint64(each),
            matrix,
        )


def _width(role: Role, dtype: str) -> int:
    return role.itemsize or DTYPE_BITS[dtype] // 8


def _shapes(rows: tuple[int, ...], role: Role, dtype: str) -> list[tuple[int, ...]]:
    """Shapes in which [*rows, role.columns] may be stored; bytes may come as larger integers."""
    columns = role.columns * _width(role, dtype) // (DTYPE_BITS[dtype] // 8)
    shapes = [(*rows, columns)]
    if role.part == "bias" or (role.part == "scale" and columns == 1):
        shapes.append(rows)
    return shapes


def _fused_shapes(experts: int, stored: int, role: Role, dtype: str, turned: bool) -> list[tuple[int, ...]]:
    shapes = _shapes((experts, stored), role, dtype)
    if turned:
        # one column: on its side or not, the bytes are the same
        upright = [(experts, stored, 1)] if shapes[0][2] == 1 else []
        return [(experts, shapes[0][2], stored), *upright]
    if role.keyword == "packed" and role.columns % 16 == 0:
        shapes.append((experts, stored, role.columns // 16, 16))  # groups of 32 weights in 16 bytes
    return shapes
