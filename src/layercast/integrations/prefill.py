"""A prompt through a streamed model, measured: what `layercast prefill` and `layercast demo` run on every rank."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from layercast.errors import ConfigError
from layercast.group import Group
from layercast.integrations.transformers import Attached, as_plain_numbers, load, read_config
from layercast.stream import LayerWeights

_STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class PrefillPlan:
    """What the ranks do; travels to their processes. `prompt`: token ids, one sequence. `chunk`: tokens per pass."""

    checkpoint: Path
    tp: int
    prompt: tuple[int, ...]
    device: str = "host"
    torch_device: str = "cpu"
    dtype: str = "bfloat16"
    depth: int = 2
    chunk: int | None = None
    candidates: int = 5
    compare: bool = False


@dataclasses.dataclass
class PrefillReport:
    """What a rank has seen. Times in ms, per use of a layer: waiting for its weights, the copy of them (on its way
    since earlier, maybe), and computing from then on until the next layer's are asked for."""

    rows: list[dict[str, Any]]
    logits: torch.Tensor  # [vocabulary], of the last token
    seconds: float
    memory: dict[str, int]  # bytes
    stream: dict[str, Any]
    difference: float | None = None  # the greatest of all logits, against the resident model
    own_difference: float | None = None  # between two runs of the resident model that multiply in another order
    largest: float | None = None  # of the resident model's logits
    all_logits: torch.Tensor | None = None


def read_prompt(checkpoint: Path, text: str) -> list[int]:
    """Token ids by the checkpoint's tokenizer. ConfigError where it has none."""
    if not any((checkpoint / name).exists() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise ConfigError(
            f"{checkpoint} has no tokenizer to read a prompt with", hint="--random-tokens N takes N random ones instead"
        )
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(checkpoint)
    found = list(tokenizer(text)["input_ids"])
    if not found:
        raise ConfigError("the prompt is empty")
    return found


def random_prompt(checkpoint: Path, tokens: int, seed: int = 0) -> list[int]:
    """`tokens` random ids of the model's vocabulary."""
    vocabulary = int(read_config(checkpoint).get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (tokens,), generator=generator).tolist()


def check_positions(checkpoint: Path, tokens: int) -> None:
    """ConfigError for a prompt that is longer than what the model was made for."""
    most = getattr(read_config(checkpoint).get_text_config(), "max_position_embeddings", None)
    if most is not None and tokens > most:
        raise ConfigError(f"the prompt has {tokens} tokens, the model's positions end at {most}")


class _Clock:
    """Notes each use of a layer, and what memory the process has then."""

    def __init__(self, tell: Callable[[int, int], object], total: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.anonymous = 0
        self._tell, self._total = tell, total
        self._ready = 0.0

    def use(self, weights: LayerWeights) -> None:
        now = time.perf_counter()
        self.stop(now - weights.waited_s)
        copied = weights.statistics
        self.rows.append(
            {
                "layer": weights.layer,
                "waited_ms": weights.waited_s * 1e3,
                "copy_ms": 0.0 if copied is None else copied.total_ms,
                "bytes": 0 if copied is None else copied.bytes,
                "compute_ms": 0.0,
            }
        )
        self._ready = now
        self.anonymous = max(self.anonymous, sum(_memory(name) for name in ("RssAnon", "RssShmem")))
        self._tell(len(self.rows), self._total)

    def stop(self, now: float) -> None:
        """The last layer's computing ends here."""
        if self.rows:
            self.rows[-1]["compute_ms"] = (now - self._ready) * 1e3


def _memory(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def run_prefill(group: Group, plan: PrefillPlan, progress: Connection | None) -> PrefillReport:
    """One rank's process: loads the model without its experts, runs the prompt, compares where that is asked for."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # Ranks share the cores that this process may use.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // plan.tp))

    def tell(done: int, total: int) -> None:
        if progress is not None and group.rank == 0:
            progress.send(("layers", done, total))

    dtype = getattr(torch, plan.dtype)
    if plan.torch_device == "cuda":
        torch.cuda.set_device(group.rank)
    with load(
        plan.checkpoint, group=group, device=plan.device, depth=plan.depth, dtype=dtype, torch_device=plan.torch_device
    ) as attached:
        loaded = sum(_memory(name) for name in ("RssAnon", "RssShmem"))
        group.barrier("model loaded")
        report = _forward(attached, plan, tell)
        device_bytes = attached.stream.describe()["device_bytes"]
        report.memory |= {"before": loaded, "device_layers": device_bytes, "peak_with_files": _memory("VmHWM")}
        del attached.model
    if plan.compare and group.rank == 0:
        _compare(report, plan)
    report.all_logits = None
    return report


def _forward(attached: Attached, plan: PrefillPlan, tell: Callable[[int, int], object]) -> PrefillReport:
    step = plan.chunk or len(plan.prompt)
    chunks = [plan.prompt[at : at + step] for at in range(0, len(plan.prompt), step)]
    clock = _Clock(tell, len(chunks) * len(attached.stream.layers))
    attached.on_use.append(clock.use)
    began = time.perf_counter()
    found = []
    more: dict[str, Any] = {"use_cache": len(chunks) > 1}
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the cache's name changes within transformers 5
        for chunk in chunks:
            output = attached.model(torch.tensor([chunk], device=plan.torch_device), **more)
            if len(chunks) > 1:
                more["past_key_values"] = output.past_key_values
            found.append(output.logits[0].float().cpu())
    ended = time.perf_counter()
    clock.stop(ended)
    logits = torch.cat(found)
    return PrefillReport(
        clock.rows,
        logits[-1],
        ended - began,
        {"peak": clock.anonymous},
        attached.stream.statistics(),
        all_logits=logits if plan.compare else None,
    )


def _compare(report: PrefillReport, plan: PrefillPlan) -> None:
    """The resident model as transformers itself loads it, dequantised, on the same prompt."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        plan.checkpoint,
        dtype=getattr(torch, plan.dtype),
        device_map={"": plan.torch_device},
        **as_plain_numbers(read_config(plan.checkpoint)),
    )
    model.eval()
    found = []
    with torch.inference_mode():
        for experts in (None, "eager"):  # transformers' choice, and one expert after the other
            if experts is not None:
                model.set_experts_implementation(experts)
            found.append(model(torch.tensor([plan.prompt], device=plan.torch_device)).logits[0].float().cpu())
    assert report.all_logits is not None
    report.difference = float((report.all_logits - found[0]).abs().max())
    report.own_difference = float((found[1] - found[0]).abs().max())
    report.largest = float(found[0].abs().max())
    report.memory["resident_peak"] = _memory("VmHWM")
