"""The table of docs/reference/formats.md: published shapes, formats and T, each with what `expert_layout` says.

`python -m tests.formats.format_table` prints it, and below it what the refusals say. test_table.py tries every cell.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from layercast.checkpoint.formats import FORMATS
from layercast.errors import GeometryError

RANKS = (1, 2, 4, 8)


class Model(NamedTuple):
    """A published shape, the name that `layercast synth --like` takes, and formats that are published or common."""

    like: str
    family: str
    hidden: int
    inner: int
    forms: tuple[str, ...]


MODELS: dict[str, Model] = {
    "DeepSeek-V3": Model("deepseek-v3", "deepseek", 7168, 2048, ("fp8_block", "bf16", "int4")),
    "DeepSeek-V3.2": Model("deepseek-v3.2", "deepseek", 7168, 2048, ("fp8_block", "bf16")),
    "GLM-4.5, 4.7": Model("glm-4.5", "glm", 5120, 1536, ("bf16", "fp8_channel", "fp8_block", "int4")),
    "GLM-4.5-Air": Model("glm-4.5", "glm", 4096, 1408, ("bf16", "fp8_channel", "fp8_block")),
    "GLM-5": Model("glm-5", "glm", 6144, 2048, ("bf16", "fp8_block", "int4")),
    "Qwen3-235B": Model("qwen3-moe", "qwen3_moe", 4096, 1536, ("bf16", "fp8_block", "int4")),
    "Qwen3-30B": Model(
        "qwen3-moe", "qwen3_moe", 2048, 768, ("bf16", "fp8_block", "fp8_channel", "int4", "mxfp4", "mxfp8")
    ),
    "Qwen3-Next-80B": Model("qwen3-next", "qwen3_next", 2048, 512, ("bf16", "fp8_block", "fp8_channel", "int4")),
    "Kimi-K2": Model("kimi-k2", "kimi", 7168, 2048, ("fp8_block", "bf16", "int4", "mxfp4")),
    "MiniMax-M2": Model("minimax-m2", "minimax_m2", 3072, 1536, ("fp8_block", "bf16", "mxfp8", "int4", "mxfp4")),
    "Mixtral 8x7B": Model("mixtral", "mixtral", 4096, 14336, ("bf16", "fp16", "fp8_channel", "int4")),
    "gpt-oss": Model("gpt-oss", "gpt_oss", 2880, 2880, ("mxfp4", "bf16")),
    "Llama-4": Model("llama-4", "llama4", 5120, 8192, ("bf16", "fp8_channel", "int4")),
}


def cell(form: str, hidden: int, inner: int, tp: int) -> str:
    """`exact`, or `refused` and the grid on which the finer cut is exact."""
    try:
        FORMATS[form].layout(hidden, inner, tp)
    except GeometryError:
        finer = FORMATS[form].layout(hidden, inner, tp, "finer")
        [block] = [kind.block for kind in finer.kinds if kind.name == "w2_scale"]
        assert block is not None
        return f"refused (Ir {inner // tp}; finer: {block[1]})"
    return "exact"


def table() -> str:
    """Markdown."""
    lines = [
        "| model | family | H | I | format | " + " | ".join(f"T {tp}" for tp in RANKS) + " |",
        "|---|---|---|---|---|" + "---|" * len(RANKS),
    ]
    for name, (_, family, hidden, inner, forms) in MODELS.items():
        for form in forms:
            cells = " | ".join(cell(form, hidden, inner, tp) for tp in RANKS)
            lines.append(f"| {name} | {family} | {hidden} | {inner} | {form} | {cells} |")
    return "\n".join(lines) + "\n"


def refusals() -> str:
    """What the refusals of the table say, one line each."""
    said = []
    for name, model in MODELS.items():
        for form, tp in itertools.product(model.forms, RANKS):
            try:
                FORMATS[form].layout(model.hidden, model.inner, tp)
            except GeometryError as error:
                said.append(f"- {name}, {form}: {error.message}; {error.hint.split('; ')[-1]}")
    return "\n".join(said) + "\n"


if __name__ == "__main__":
    print(table())
    print(refusals(), end="")
