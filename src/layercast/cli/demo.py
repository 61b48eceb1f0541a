"""`layercast demo`: a small checkpoint made, streamed to two ranks, verified byte for byte, and computed with."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.progress import Progress

from layercast.checkpoint import Checkpoint, write_demo_checkpoint
from layercast.cli.prefill import absent_packages, summary
from layercast.cli.prefill import run as run_prefill
from layercast.cli.streaming import Plan, finish, run
from layercast.devices import check_device
from layercast.sources import HostViews, LayerSource

_TP = 2
_PROMPT = 64
Tensor = npt.NDArray[np.uint8]


def demo(
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks, a process each.")] = _TP,
    device: Annotated[str, typer.Option(help="host, cuda, cuda:0, or a simulated bus: link:25GB/s.")] = "host",
    keep: Annotated[Path | None, typer.Option(help="Write the checkpoint to this new folder and keep it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Make a small Qwen3-MoE block-FP8 checkpoint, stream every layer to two ranks, verify every byte.

    Where torch and transformers are installed, a prompt runs through the streamed model as well, and through the
    resident one: their logits are compared.
    """
    check_device(device, tp)
    talk = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="layercast-demo-") as folder:
        path = Path(folder) / "qwen3-moe-fp8" if keep is None else keep
        _write(path, talk)
        with Checkpoint.open(path) as checkpoint:
            layers = tuple(checkpoint.layers)
        plan = Plan(tp=tp, layers=layers, checkpoint=path, device=device, verifier=compare_independently)
        report, _ = run(plan, talk)
        if keep is None:
            report["source"] = "demo checkpoint (Qwen3-MoE, block-FP8)"  # its folder is gone in a moment
        report["prefill"] = None if absent_packages() else [_prefill(path, ranks, device, talk) for ranks in (1, tp)]
        code = finish(report, as_json)
        if not as_json:
            _show_prefill(report["prefill"], Console())
    raise typer.Exit(code)


def _prefill(path: Path, tp: int, device: str, talk: Console) -> dict[str, Any]:
    from layercast.integrations.prefill import PrefillPlan, random_prompt

    # float32: what differs then is the order of sums alone
    prompt = tuple(random_prompt(path, _PROMPT))
    plan = PrefillPlan(path, tp, prompt, device, dtype="float32", compare=True)
    report = summary(plan, run_prefill(plan, talk))
    return {name: report[name] for name in ("tp", "tokens", "seconds", "difference", "own_difference", "largest")}


def _show_prefill(rows: list[dict[str, Any]] | None, console: Console) -> None:
    if rows is None:
        missing = ", ".join(absent_packages())
        console.print(f"no prefill: needs {missing} (pip install 'layercast\\[transformers]')", soft_wrap=True)
    for row in rows or []:
        console.print(
            f"prefill of {row['tokens']} tokens, tp {row['tp']}, float32: logits within {row['difference']:.1e} of the"
            f" resident model's (which go up to {row['largest']:.1f})",
            soft_wrap=True,
            highlight=False,
        )


def _write(path: Path, talk: Console) -> None:
    with Progress(console=talk, transient=True, disable=not talk.is_terminal) as progress:
        task = progress.add_task("writing a checkpoint", total=None)
        write_demo_checkpoint(path, progress=lambda done, total: progress.update(task, completed=done, total=total))


@functools.lru_cache(maxsize=1)
def _tensors(folder: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Every tensor's shape and bytes, read by the safetensors library: nothing of ours takes part."""
    import safetensors

    found: dict[str, tuple[tuple[int, ...], bytes]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(file.read_bytes())
        found.update({name: (tuple(entry["shape"]), bytes(entry["data"])) for name, entry in entries})
    return found


def compare_independently(source: LayerSource, layer: int, rank: int, tp: int, views: HostViews) -> list[int]:
    """Cuts each expert anew, with safetensors and numpy alone, from the table of block-FP8's geometry."""
    tensors = _tensors(Path(source.name))

    def tensor(expert: int, name: str) -> Tensor:
        """uint8 [rows, columns, bytes per element]"""
        shape, data = tensors[f"model.layers.{layer}.mlp.experts.{expert}.{name}"]
        return np.frombuffer(data, dtype=np.uint8).reshape(*shape, -1)

    def rows(matrix: Tensor) -> Tensor:
        return np.split(matrix, tp, axis=0)[rank]

    def columns(matrix: Tensor) -> Tensor:
        return np.split(matrix, tp, axis=1)[rank]

    wrong = []
    for expert in range(source.experts(layer)):
        expected = []
        for suffix in ("weight", "weight_scale_inv"):
            gate, up, down = (tensor(expert, f"{part}_proj.{suffix}") for part in ("gate", "up", "down"))
            expected += [np.concatenate([rows(gate), rows(up)]), columns(down)]
        w13, w2, w13_scale, w2_scale = expected
        seen = (view[expert] for view in views)
        if not all(np.array_equal(a, b.ravel()) for a, b in zip(seen, (w13, w13_scale, w2, w2_scale), strict=True)):
            wrong.append(expert)
    return wrong
