"""`layercast prefill`: a prompt through a model whose experts are streamed, layer by layer."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from layercast import launch
from layercast.checkpoint import Checkpoint
from layercast.cli.streaming import counted
from layercast.devices import check_device
from layercast.errors import ConfigError
from layercast.integrations import FORMATS

if TYPE_CHECKING:
    from layercast.integrations.prefill import PrefillPlan, PrefillReport

_DTYPES = ("bfloat16", "float16", "float32")


def prefill(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint: Qwen3-MoE, DeepSeek-V3, GLM-4-MoE, ...")],
    prompt_file: Annotated[Path | None, typer.Option(help="Text, read with the checkpoint's tokenizer.")] = None,
    random_tokens: Annotated[int | None, typer.Option(help="Instead of a text: this many random tokens.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks, a process each.")] = 1,
    depth: Annotated[int, typer.Option(help="Layers of experts on the device at a time.")] = 2,
    device: Annotated[str, typer.Option(help="Where experts go: host, cuda, or a bus such as link:25GB/s.")] = "host",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    chunk: Annotated[int | None, typer.Option(help="Tokens per pass through the layers; default: all.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the model as transformers loads it, whole; compare logits.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run a prompt through a model that does not have to fit: its experts arrive a layer ahead."""
    require_packages()
    if (prompt_file is None) == (random_tokens is None):
        raise ConfigError("name either --prompt-file or --random-tokens", hint="layercast prefill --help")
    for name, value in (("tp", tp), ("depth", depth), ("random-tokens", random_tokens), ("chunk", chunk)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: expected at least 1")
    if dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype}: expected {', '.join(_DTYPES)}")
    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint} is not a folder")
    with Checkpoint.open(checkpoint) as opened:
        form = opened.layout(tp).format  # before torch is imported and ranks are started
    if form not in FORMATS:
        raise ConfigError(f"{checkpoint}: experts in {form} cannot be computed with", hint=f"only {', '.join(FORMATS)}")
    check_device(device, tp)
    from layercast.integrations.prefill import PrefillPlan, check_positions, random_prompt, read_prompt

    if prompt_file is not None:
        try:
            prompt = read_prompt(checkpoint, prompt_file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompt-file {prompt_file}: {error}") from error
    else:
        prompt = random_prompt(checkpoint, random_tokens or 0)
    check_positions(checkpoint, len(prompt))
    where = torch_device(device)
    plan = PrefillPlan(checkpoint, tp, tuple(prompt), device, where, dtype, depth, chunk, compare=compare)
    report = summary(plan, run(plan, Console(stderr=True)))
    if as_json:
        print(json.dumps(report))
    else:
        show(report, Console())


def require_packages() -> None:
    """ConfigError where torch or transformers is not installed."""
    if absent := absent_packages():
        raise ConfigError(f"needs {', '.join(absent)}", hint="pip install 'layercast[transformers]'")


def torch_device(device: str) -> str:
    """Where the rest of a model is, whose experts are on `device`. ConfigError where torch cannot compute there."""
    if not device.startswith("cuda"):
        return "cpu"
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"device {device}: this torch ({torch.__version__}) has no CUDA to compute with")
    return device


def absent_packages() -> list[str]:
    """What of torch and transformers is not installed."""
    return [name for name in ("torch", "transformers", "accelerate") if importlib.util.find_spec(name) is None]


def run(plan: PrefillPlan, talk: Console) -> list[PrefillReport]:
    """All ranks, with a progress bar over layers."""
    from layercast.integrations.prefill import run_prefill

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    with Progress(*columns, console=talk, transient=True, disable=not talk.is_terminal) as progress:
        task = progress.add_task("loading the rest of the model", total=None, done="")
        reader, writer = multiprocessing.Pipe(duplex=False)
        follower = threading.Thread(target=_follow, args=(reader, progress, task))
        follower.start()
        try:
            return launch(run_prefill, plan.tp, args=(plan, writer))
        finally:
            writer.send(None)
            follower.join()
            reader.close()
            writer.close()


def _follow(reader: Connection, progress: Progress, task: TaskID) -> None:
    while (message := reader.recv()) is not None:
        _, done, total = message
        text = "resident model" if done == total else f"{done}/{total} layers"
        progress.update(task, description="prefill", completed=done, total=total, done=text)


def summary(plan: PrefillPlan, ranks: list[PrefillReport]) -> dict[str, Any]:
    """Of rank 0, where ranks differ; for JSON."""
    first = ranks[0]
    best = first.logits.topk(min(plan.candidates, first.logits.numel()))
    names = _decode(plan, best.indices.tolist())
    rows = first.rows
    return {
        "source": str(plan.checkpoint),
        "tp": plan.tp,
        "tokens": len(plan.prompt),
        "dtype": plan.dtype,
        "device": plan.device,
        "depth": plan.depth,
        "seconds": first.seconds,
        "candidates": [
            {"token": token, "text": text, "logit": logit}
            for token, text, logit in zip(best.indices.tolist(), names, best.values.tolist(), strict=True)
        ],
        "per_layer": rows,
        "waited_ms": sum(row["waited_ms"] for row in rows),
        "compute_ms": sum(row["compute_ms"] for row in rows),
        "copy_ms": sum(row["copy_ms"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "memory": first.memory,
        "stream": first.stream,
        "difference": first.difference,
        "own_difference": first.own_difference,
        "largest": first.largest,
    }


def _decode(plan: PrefillPlan, tokens: list[int]) -> list[str]:
    import transformers

    if not (plan.checkpoint / "tokenizer.json").exists():
        return [""] * len(tokens)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(plan.checkpoint)
    return [tokenizer.decode([token]) for token in tokens]


def show(report: dict[str, Any], console: Console) -> None:
    """Tables and a summary."""
    console.print(
        f"{report['source']}: {counted(report['tokens'], 'token')}, {counted(report['tp'], 'rank')},"
        f" {report['dtype']}, times in ms",
        soft_wrap=True,
    )
    table = Table()
    for name in ("layer", "waited for weights", "copy", "MB", "compute"):
        table.add_column(name, justify="right")
    for row in report["per_layer"]:
        times = (f"{row[name]:.1f}" for name in ("waited_ms", "copy_ms"))
        table.add_row(str(row["layer"]), *times, f"{row['bytes'] / 1e6:.1f}", f"{row['compute_ms']:.1f}")
    console.print(table)
    console.print(
        f"{report['seconds']:.2f} s: computing {report['compute_ms'] / 1e3:.2f} s, waiting for weights"
        f" {report['waited_ms'] / 1e3:.2f} s (the copies themselves took {report['copy_ms'] / 1e3:.2f} s)",
        soft_wrap=True,
    )
    memory = report["memory"]
    console.print(
        f"memory of rank 0: {memory['before'] / 1e6:.0f} MB with the model and"
        f" {counted(report['depth'], 'device layer')} ({memory['device_layers'] / 1e6:.0f} MB of experts),"
        f" at most {memory['peak'] / 1e6:.0f} MB"
        f" ({memory['peak_with_files'] / 1e6:.0f} MB with pages of the checkpoint's files)",
        soft_wrap=True,
    )
    for place, row in enumerate(report["candidates"], start=1):
        text = f" {row['text']!r}" if row["text"] else ""
        console.print(f"next token {place}: {row['token']}{text} ({row['logit']:.3f})", highlight=False)
    if report["difference"] is not None:
        console.print(
            f"greatest difference of logits to the resident model: {report['difference']:.3g}; between two of its own"
            f" runs, multiplied in another order: {report['own_difference']:.3g}; its largest logit:"
            f" {report['largest']:.3g}; memory with it: at most {memory['resident_peak'] / 1e6:.0f} MB",
            soft_wrap=True,
        )
