"""What an expert's tensor must be: there, of a dtype, of a shape; and the words for what it is not.

Reasons of CheckpointError raised here: missing_tensor, missing_scale, layer_dtype, scale_dtype, bias_dtype,
tensor_shape.
"""

from __future__ import annotations

from collections.abc import Iterable

from layercast.checkpoint.index import TensorIndex
from layercast.errors import CheckpointError


def refuse_missing(index: TensorIndex, wanted: list[tuple[str, str]]) -> None:
    """Raise CheckpointError where tensors are not there; `wanted`: name and part."""
    missing = [(name, part) for name, part in wanted if index.find(name) is None]
    if not missing:
        return
    scales = [name for name, part in missing if part == "scale"]
    if len(scales) < len(missing):
        names = [name for name, part in missing if part != "scale"]
        raise CheckpointError(
            f"missing expert tensors ({len(names)}): {shown(names)}",
            reason="missing_tensor",
            hint="the checkpoint is incomplete; fetch it again",
        )
    other = index.find(scales[0].removesuffix("_inv")) if scales[0].endswith("_inv") else None
    raise CheckpointError(
        f"missing scales ({len(scales)}): {shown(scales)}",
        reason="missing_scale",
        hint="there is a scale without _inv, as other formats have" if other else "the checkpoint is incomplete",
    )


def check_dtype(layer: int, name: str, seen: str, part: str, dtypes: tuple[str, ...]) -> None:
    """Raise CheckpointError where a tensor's dtype is none of `dtypes`."""
    if seen in dtypes:
        return
    wanted = " or ".join(dtypes)
    if part == "weight":
        raise CheckpointError(
            f"layer {layer} is not in the checkpoint's format: {name} is {seen}, expected {wanted}",
            reason="layer_dtype",
            hint=f"all experts of a layer must be {wanted}; quantise layer {layer} as one",
        )
    raise CheckpointError(
        f"{name} is {seen}, expected {wanted} (layer {layer})",
        reason=f"{part}_dtype",
        hint=f"a {part} of another dtype is not read; convert it",
    )


def check_shape(name: str, seen: tuple[int, ...], wanted: list[tuple[int, ...]]) -> None:
    """Raise CheckpointError where a tensor's shape is none of `wanted`."""
    if seen in wanted:
        return
    raise CheckpointError(
        f"{name} has shape {list(seen)}, config.json makes it {' or '.join(str(list(shape)) for shape in wanted)}",
        reason="tensor_shape",
        hint="sizes of experts, blocks or groups in config.json do not fit the weights",
    )


def shown(items: list[str], count: int = 3) -> str:
    """The first few, and dots where there are more."""
    return ", ".join(items[:count]) + (", ..." if len(items) > count else "")


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as people write them: 3 to 44, 46; `none` where there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return ", ".join(words[:20]) + (", ..." if len(words) > 20 else "") or "none"
