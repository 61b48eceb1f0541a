"""Quantisation formats: which tensors an expert has and how a rank's kinds are cut out of them.

A format is one subclass of `Format` and one line in `FORMATS`. Formats that are recognised but not written
yet are refused by name, never read as another.

Reasons of CheckpointError raised here: format, config_key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layercast.checkpoint.config import ModelConfig
from layercast.checkpoint.cuts import Cut, Source, cut_columns, cut_rows
from layercast.errors import CheckpointError
from layercast.geometry import BLOCK, ExpertLayout, fp8_block_layout, ranks_that_work


class Format(ABC):
    """One quantisation format of expert weights."""

    name: str

    @classmethod
    @abstractmethod
    def from_config(cls, config: ModelConfig) -> Format:
        """The format with the parameters of config.json's quantization_config."""

    @abstractmethod
    def layout(self, hidden: int, intermediate: int, tp: int) -> ExpertLayout:
        """What an expert is on one of `tp` ranks; GeometryError where it cannot be cut."""

    @abstractmethod
    def ranks_that_work(self, intermediate: int) -> tuple[int, ...]:
        """The T of 1 to 8 for which `layout` cuts an expert of this I."""

    @abstractmethod
    def sources(self, hidden: int, intermediate: int) -> tuple[Source, ...]:
        """The tensors of one expert, with the dtype and shape that they must have."""

    @abstractmethod
    def cuts(self, layout: ExpertLayout, rank: int) -> tuple[tuple[Cut, ...], ...]:
        """Per kind of `layout`, the cuts whose bytes, one after the other, are that kind on `rank`."""

    @abstractmethod
    def reference(
        self, tensors: Sequence[NDArray[np.uint8]], layout: ExpertLayout, rank: int
    ) -> dict[str, NDArray[np.uint8]]:
        """The same bytes by plain slicing: kind -> uint8 [nbytes]; `tensors` in the order of `sources`."""


class BlockFp8(Format):
    """e4m3 weights [rows, columns] with float32 `weight_scale_inv` [ceil(rows/b0), ceil(columns/b1)].

    The layout of DeepSeek-V3 and of quant_method "fp8" in transformers: weight = stored weight * scale of
    its block.
    """

    name = "fp8_block"

    def __init__(self, block: tuple[int, int] = BLOCK) -> None:
        self.block = block

    @classmethod
    def from_config(cls, config: ModelConfig) -> BlockFp8:
        block = (config.quantization or {}).get("weight_block_size", list(BLOCK))
        if type(block) is not list or len(block) != 2 or any(type(b) is not int or b < 1 for b in block):
            raise config.error("quantization_config.weight_block_size", f"is {block!r}, expected two sizes")
        return cls((block[0], block[1]))

    def layout(self, hidden: int, intermediate: int, tp: int) -> ExpertLayout:
        return fp8_block_layout(hidden, intermediate, tp, block=self.block)

    def ranks_that_work(self, intermediate: int) -> tuple[int, ...]:
        return ranks_that_work(intermediate, self.block)

    def sources(self, hidden: int, intermediate: int) -> tuple[Source, ...]:
        found: list[Source] = []
        for projection in ("gate", "up", "down"):
            shape = (hidden, intermediate) if projection == "down" else (intermediate, hidden)
            grid = (-(-shape[0] // self.block[0]), -(-shape[1] // self.block[1]))
            found.append(Source(projection, "weight", "F8_E4M3", shape))
            found.append(Source(projection, "weight_scale_inv", "F32", grid))
        return tuple(found)

    def cuts(self, layout: ExpertLayout, rank: int) -> tuple[tuple[Cut, ...], ...]:
        ir, sources = layout.intermediate_per_rank, self.sources(layout.hidden, layout.intermediate)
        gate, gate_scale, up, up_scale, down, down_scale = range(6)
        # the layout has seen to it that a cut lies on the block grid
        rows, row = -(-ir // self.block[0]), rank * ir // self.block[0]
        columns, column = -(-ir // self.block[1]), rank * ir // self.block[1]
        return (
            (cut_rows(sources, gate, rank * ir, ir), cut_rows(sources, up, rank * ir, ir)),
            (cut_rows(sources, gate_scale, row, rows), cut_rows(sources, up_scale, row, rows)),
            (cut_columns(sources, down, rank * ir, ir),),
            (cut_columns(sources, down_scale, column, columns),),
        )

    def reference(
        self, tensors: Sequence[NDArray[np.uint8]], layout: ExpertLayout, rank: int
    ) -> dict[str, NDArray[np.uint8]]:
        gate, gate_scale, up, up_scale, down, down_scale = tensors
        hidden, inner, tp = layout.hidden, layout.intermediate, layout.tp

        def rows(tensor: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
            part = count // tp
            return tensor.reshape(count, -1)[rank * part : (rank + 1) * part]

        def columns(tensor: NDArray[np.uint8], count: int, itemsize: int) -> NDArray[np.uint8]:
            part = count // tp
            return tensor.reshape(-1, count, itemsize)[:, rank * part : (rank + 1) * part]

        row_grid, column_grid = (-(-inner // size) for size in self.block)
        parts = {
            "w13": (rows(gate, inner), rows(up, inner)),
            "w13_scale": (rows(gate_scale, row_grid), rows(up_scale, row_grid)),
            "w2": (columns(down.reshape(hidden, inner), inner, 1),),
            "w2_scale": (columns(down_scale, column_grid, 4),),
        }
        return {kind: np.concatenate([part.reshape(-1) for part in found]) for kind, found in parts.items()}


FORMATS: Mapping[str, type[Format]] = MappingProxyType({BlockFp8.name: BlockFp8})
"""The formats that can be read. Recognised too: bf16, fp8_channel, fp8_tensor, mxfp8, mxfp4, int4."""


def detect_format(config: ModelConfig) -> Format:
    """The format that config.json declares; CheckpointError (reason "format") where it is not supported."""
    name = declared_format(config.quantization)
    if name not in FORMATS:
        raise CheckpointError(
            f"{config.path}: format {name} is not supported yet; supported: {', '.join(FORMATS)}",
            reason="format",
            hint="use a block-FP8 checkpoint of the model (quant_method fp8 with weight_block_size)",
        )
    return FORMATS[name].from_config(config)


def declared_format(quantization: Mapping[str, Any] | None) -> str:
    """The name of the format that a quantization_config declares; its own words where they are not known."""
    if quantization is None:
        return "bf16"
    method = str(quantization.get("quant_method"))
    if method == "fp8":
        if quantization.get("expert_dtype", "fp8") != "fp8":
            return f"fp8 with {quantization['expert_dtype']} experts"
        if quantization.get("weight_block_size", BLOCK) is None:
            return "fp8_tensor"
        return "fp8_block"
    if method == "compressed-tensors":
        return _compressed_tensors(quantization)
    known = {"mxfp4": "mxfp4", "mxfp8": "mxfp8", "gptq": "int4", "awq": "int4", "fbgemm_fp8": "fp8_channel"}
    return known.get(method, f"quant_method {method!r}")


def _compressed_tensors(quantization: Mapping[str, Any]) -> str:
    """https://github.com/vllm-project/compressed-tensors: one scheme per group of layers."""
    groups = quantization.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [scheme.get("weights") if isinstance(scheme, Mapping) else None for scheme in schemes]
    if len(weights) != 1 or not isinstance(weights[0], Mapping):
        return f"compressed-tensors with {len(weights)} schemes"
    bits, kind, strategy = (weights[0].get(key) for key in ("num_bits", "type", "strategy"))
    if (bits, kind) == (4, "int"):
        return "int4"
    if (bits, kind) == (8, "float") and strategy in ("channel", "tensor"):
        return f"fp8_{strategy}"
    return f"compressed-tensors {kind}{bits} per {strategy}"
