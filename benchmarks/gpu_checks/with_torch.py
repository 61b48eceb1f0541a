"""What wants torch: a plain loop of its copies, and matmuls beside ours."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpu_checks.report import SHAPES, Check, Row, Skip
from gpu_checks.rig import PinnedLayer, opened

if TYPE_CHECKING:
    from layercast import Transport


def baseline(check: Check) -> None:
    """A loop of torch copies, an event per expert, two experts in flight; this library against it."""
    from layercast.geometry import SHAPES as ALL

    torch = _torch()
    for name in SHAPES:
        kinds = list(ALL[name].layout(1).sizes)
        experts = max(2, min(ALL[name].experts, (check.mib << 20) // sum(kinds)))
        device = torch.device("cuda", check.device)
        host = [torch.ones((experts, nbytes), dtype=torch.uint8, pin_memory=True) for nbytes in kinds]
        there = [torch.empty((experts, nbytes), dtype=torch.uint8, device=device) for nbytes in kinds]
        stream = torch.cuda.Stream(device)

        def layer(stream: Any = stream, host: Any = host, there: Any = there, experts: int = experts) -> float:
            started = time.monotonic()
            events: list[Any] = []
            with torch.cuda.stream(stream):
                for expert in range(experts):
                    for source, target in zip(host, there, strict=True):
                        target[expert].copy_(source[expert], non_blocking=True)
                    events.append(torch.cuda.Event())
                    events[-1].record(stream)
                    if expert > 0:
                        events[expert - 1].synchronize()
            events[-1].synchronize()
            return time.monotonic() - started

        layer()
        seconds = statistics.median(layer() for _ in range(check.rounds))
        loop = experts * sum(kinds) / seconds / 1e9
        check.rows.append(Row("torch loop", name, loop, "GB/s", check.bandwidth / 1e9))
        own = next((r.value for r in check.rows if (r.measure, r.case) == ("direct", name)), None)
        if own is not None:
            check.rows.append(Row("direct over torch loop", name, own / loop, "times").judged(at_least=1.3))


def overlap(check: Check) -> None:
    """Layers of a synthetic checkpoint stream into two device layers in turn while matmuls run on the other one."""
    from layercast.devices import Cuda
    from layercast.geometry import SHAPES as ALL

    torch = _torch()
    shape = ALL["qwen3-30b"]
    kinds = list(shape.layout(1).sizes)
    experts = max(2, min(shape.experts, (check.mib << 20) // sum(kinds)))
    device = torch.device("cuda", check.device)
    stream = torch.cuda.Stream(device)
    tokens = torch.randn((4096, shape.hidden), dtype=torch.bfloat16, device=device)
    weight = torch.randn((shape.hidden, shape.hidden), dtype=torch.bfloat16, device=device)

    def compute(times: int) -> None:
        with torch.cuda.stream(stream):
            for _ in range(times):
                torch.matmul(tokens, weight)

    def seconds_of(body: Callable[[], object]) -> float:
        torch.cuda.synchronize(device)
        started = time.monotonic()
        body()
        stream.synchronize()
        return time.monotonic() - started

    cuda = Cuda(check.device, driver=check.driver or None)
    with contextlib.ExitStack() as stack:
        ends = []
        for _ in range(2):
            opened_device = stack.enter_context(contextlib.closing(cuda.open()))
            layer = PinnedLayer(opened_device, kinds, experts)
            stack.callback(layer.close)
            transport = stack.enter_context(opened(check, kinds, experts, device=opened_device))
            transport.use_arena(layer)  # type: ignore[arg-type]
            transport.load(1, 0, experts)
            ends.append(transport)
        epochs = [1, 1]

        def load(i: int) -> Transport:
            epochs[i] += 1
            ends[i].join(epochs[i], 0, experts)
            ends[i].run(epochs[i], 0, experts)
            ends[i].wait(epochs[i])
            return ends[i]

        rounds = 2 * check.rounds
        alone = seconds_of(lambda: [load(i % 2) for i in range(rounds)]) / rounds
        compute(3)
        per_matmul = seconds_of(lambda: compute(20)) / 20
        times = max(1, round(alone / per_matmul))
        busy = seconds_of(lambda: [compute(times) for _ in range(rounds)]) / rounds

        def both() -> None:
            for i in range(rounds):
                transport = load(i % 2)
                transport.wait(epochs[i % 2], stream=stream)
                compute(times)
                transport.consumed(stream)

        together = seconds_of(both) / rounds
    check.rows.append(Row("prefill", "a layer's copies alone", alone * 1e3, "ms"))
    check.rows.append(Row("prefill", "its matmuls alone", busy * 1e3, "ms"))
    check.rows.append(Row("prefill", "both at once", together * 1e3, "ms", max(alone, busy) * 1e3))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise Skip("torch is not installed") from None
    if not torch.cuda.is_available():
        raise Skip("this torch has no CUDA device")
    return torch
