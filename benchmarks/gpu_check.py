"""Everything that wants a GPU, in one run under 6 minutes: build, contract, bytes, and figures against the bus.

    python benchmarks/gpu_check.py [--json FILE] [--mib 1024] [--device 0] [--driver LIBRARY]

Builds the package if it is not there (`make .venv/.package`). Prints one table; --json also writes everything to FILE.
Exit code 1 where a step failed or bytes were wrong. A missed target is marked, not an error. `--driver`: another
driver than the machine's, such as the tests' fake one, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.util
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layercast import Transport

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ("glm-5-next", "deepseek-v3", "qwen3-30b")
PIECE = 4 << 20
LIMIT_S = 340.0


@dataclasses.dataclass
class Row:
    """One figure. `limit`: what it is held against; `target`: of the ratio, or of the figure without a limit."""

    measure: str
    case: str
    value: float
    unit: str
    limit: float | None = None
    target: str = ""
    met: bool | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit if self.limit else None

    def judged(self, at_least: float | None = None, below: float | None = None) -> Row:
        seen = self.ratio if self.ratio is not None else self.value
        self.target = f">= {at_least}" if at_least is not None else f"< {below}"
        self.met = seen >= at_least if at_least is not None else seen < (below or 0)
        return self


@dataclasses.dataclass
class Check:
    """Settings, and what the steps find."""

    device: int
    driver: str
    mib: int
    rounds: int
    started: float = dataclasses.field(default_factory=time.monotonic)
    rows: list[Row] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    bandwidth: float = 0.0  # bytes per second, pinned, pieces of 4 MiB
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def left(self) -> float:
        return LIMIT_S - (time.monotonic() - self.started)

    @property
    def spec(self) -> str:
        return f"cuda:{self.device}"

    def environment(self) -> dict[str, str]:
        own = {"LAYERCAST_CUDA_DRIVER": self.driver} if self.driver else {"LAYERCAST_TEST_CUDA": "real"}
        return {**os.environ, **own}


class Skip(Exception):
    """A step that this machine has not what for; its text says what."""


@contextlib.contextmanager
def opened(check: Check, kinds: list[int], experts: int, **options: Any) -> Iterator[Transport]:
    """A transport of one rank, in this process."""
    from layercast import Group, Transport
    from layercast.devices import Cuda

    device = options.pop("device", None) or Cuda(check.device, driver=check.driver or None)
    with (
        tempfile.TemporaryDirectory() as folder,
        Group("gpu-check", 0, 1, runtime_dir=folder) as group,
        Transport(group, kinds, num_experts=experts, device=device, **options) as transport,
    ):
        yield transport


class PinnedLayer:
    """A layer in pinned host memory, laid out as an arena has it."""

    def __init__(self, device: Any, kinds: list[int], experts: int) -> None:
        import numpy as np

        self.rank, self.tp, self.kind_bytes, self.layers = 0, 1, tuple(kinds), (0,)
        self.nbytes = sum(kinds) * experts
        self._memory = np.empty(self.nbytes + mmap.PAGESIZE, np.uint8)
        self.address = -(-self._memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory[:: mmap.PAGESIZE] = 7
        self._device, self._kinds, self._experts = device, kinds, experts
        device.pin(self.address, self.nbytes)

    def addresses(self, layer: int) -> list[int]:
        out, at = [], self.address
        for nbytes in self._kinds:
            out.append(at)
            at += nbytes * self._experts
        return out

    def close(self) -> None:
        self._device.unpin(self.address)


def contract(check: Check) -> None:
    """The device contract tests on this driver."""
    if importlib.util.find_spec("pytest") is None:
        raise Skip("pytest is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/contract", "-k", "cuda"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=check.environment(),
        capture_output=True,
        text=True,
        timeout=max(10, min(120, check.left)),
    )
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode != 0:
        raise RuntimeError(f"{last}; {done.stdout[-2000:]}")
    check.facts["contract"] = last
    check.rows.append(Row("contract", "tests passed", float(last.split()[0]), ""))


def right_bytes(check: Check) -> None:
    """A layer to one rank, and to two on this one GPU, read back and compared."""
    for tp in (1, 2):
        for direct in ((), ("--direct",)):
            command = [sys.executable, "-m", "layercast.cli", "stream", "--synthetic", "qwen3-30b", "--layers", "1"]
            command += ["--tp", str(tp), "--device", check.spec, "--verify", "--json", *direct]
            done = subprocess.run(
                command, env=check.environment(), capture_output=True, text=True, timeout=max(10, min(90, check.left))
            )
            if done.returncode != 0:
                raise RuntimeError(f"tp {tp} {' '.join(direct)}: {done.stderr or done.stdout}")
            report = json.loads(done.stdout)
            name = f"tp {tp} on one GPU, {'direct' if direct else 'staged'}"
            check.rows.append(Row("bytes", name, report["bytes"] / 1e9, "GB, all right"))


def bandwidth(check: Check) -> None:
    """Copies from pinned memory with nothing else in the way: the limit for all that follows."""
    from layercast import _native
    from layercast.devices import Cuda

    nbytes = check.mib << 20
    with contextlib.closing(Cuda(check.device, driver=check.driver or None).open()) as device:
        check.facts["device"] = device.describe()
        there = device.allocate(nbytes)
        layer = PinnedLayer(device, [nbytes], 1)
        for piece in (nbytes, PIECE, 1 << 20):
            times = [
                _native.measure_copies(device, layer.address, there, nbytes, piece, 1) for _ in range(check.rounds + 1)
            ][1:]
            rate = nbytes / statistics.median(times) * 1e9
            if piece == PIECE:
                check.bandwidth = rate
            name = "one copy" if piece == nbytes else f"pieces of {piece >> 20} MiB"
            check.rows.append(Row("pinned copy", name, rate / 1e9, "GB/s"))
        layer.close()


def registration(check: Check) -> None:
    """What pinning costs, per GiB, of memory that has been touched."""
    from layercast.devices import Cuda

    nbytes = check.mib << 20
    with contextlib.closing(Cuda(check.device, driver=check.driver or None).open()) as device:
        layer = PinnedLayer(device, [nbytes], 1)
        layer.close()
        times = []
        for _ in range(3):
            started = time.monotonic()
            device.pin(layer.address, nbytes)
            times.append(time.monotonic() - started)
            device.unpin(layer.address)
        check.rows.append(
            Row("registration", f"{check.mib} MiB", statistics.median(times) / nbytes * 2**30, "s per GiB")
        )


def copy_thread_s() -> float:
    """CPU seconds that this process's copying threads have used."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith("layercast-copy"):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def timed_layers(check: Check, transport: Transport, experts: int, writer: Any) -> tuple[float, float, float]:
    """Median seconds of a layer; CPU seconds per second of the copying thread, and of the whole process."""
    transport.load(1, 0, experts, writer)
    times = []
    own, process, started = copy_thread_s(), time.process_time(), time.monotonic()
    for epoch in range(2, check.rounds + 2):
        begun = time.monotonic()
        transport.load(epoch, 0, experts, writer)
        times.append(time.monotonic() - begun)
    wall = time.monotonic() - started
    return statistics.median(times), (copy_thread_s() - own) / wall, (time.process_time() - process) / wall


def throughput(check: Check) -> None:
    """Staged and direct, for the shapes of real models, against the pinned bandwidth."""
    import numpy as np

    from layercast.devices import Cuda
    from layercast.geometry import SHAPES as ALL
    from layercast.writers import memory_writer

    for name in SHAPES:
        kinds = list(ALL[name].layout(1).sizes)
        experts = max(2, min(ALL[name].experts, (check.mib << 20) // sum(kinds)))
        nbytes = experts * sum(kinds)
        limit = check.bandwidth / 1e9
        with opened(check, kinds, experts, piece_bytes=PIECE) as transport:
            few = min(experts, 16)
            source = np.ones(few * sum(kinds), np.uint8)
            seconds, own, _ = timed_layers(check, transport, experts, memory_writer(source, kinds, 1, few))
            check.rows.append(Row("staged", name, nbytes / seconds / 1e9, "GB/s", limit).judged(at_least=0.9))
            check.rows.append(Row("staged: copying thread", name, own, "cores").judged(below=0.2))
        for batch in (False, True):
            device = Cuda(check.device, batch=batch, driver=check.driver or None).open()
            with contextlib.closing(device):
                layer = PinnedLayer(device, kinds, experts)
                with opened(check, kinds, experts, device=device) as transport:
                    transport.use_arena(layer)  # type: ignore[arg-type]
                    seconds, _, whole = timed_layers(check, transport, experts, None)
                layer.close()
            title = f"{name}{', batched' if batch else ''}"
            check.rows.append(Row("direct", title, nbytes / seconds / 1e9, "GB/s", limit).judged(at_least=0.97))
            check.rows.append(Row("direct: whole process", title, whole, "cores").judged(below=0.2))


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


def latency(check: Check) -> None:
    """Tiny experts: what the handoff costs, and one layer of one expert from join to the end of wait."""
    from layercast.writers import pattern_writer

    tiny = [64, 64, 64, 64]
    experts = 2000
    with opened(check, tiny, experts, piece_bytes=256) as transport:
        seconds, _, _ = timed_layers(check, transport, experts, pattern_writer())
    check.rows.append(Row("handoff", "256 bytes a piece", seconds / experts * 1e6, "us"))
    with opened(check, tiny, 1) as transport:
        times = []
        for epoch in range(1, 600):
            started = time.monotonic()
            transport.load(epoch, 0, 1, pattern_writer())
            times.append(time.monotonic() - started)
    ordered = sorted(times[99:])
    check.rows.append(Row("latency", "one tiny expert, median", statistics.median(ordered) * 1e6, "us"))
    check.rows.append(Row("latency", "99th percentile", ordered[int(len(ordered) * 0.99)] * 1e6, "us"))


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


STEPS: tuple[Callable[[Check], None], ...] = (
    bandwidth,
    throughput,
    baseline,
    right_bytes,
    latency,
    registration,
    overlap,
    contract,
)


def run(check: Check, only: list[str]) -> None:
    for step in STEPS:
        name = step.__name__
        if only and name not in only:
            continue
        if check.left < 10:
            check.skipped[name] = "no time was left"
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            step(check)
        except Skip as reason:
            check.skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001 - the other steps still have something to say
            check.failed[name] = f"{type(error).__name__}: {error}"


def build() -> None:
    """The package, where this Python has none: then the same script once more with the one that has."""
    if importlib.util.find_spec("layercast") is not None:
        return
    own = ROOT / ".venv" / "bin" / "python"
    if Path(sys.executable).absolute() == own:
        sys.exit("gpu_check: .venv has no layercast even after the build")
    subprocess.run(["make", ".venv/.package"], cwd=ROOT, check=True, stdout=sys.stderr)
    os.execv(own, [str(own), *sys.argv])


def show(check: Check) -> None:
    print(f"{check.facts.get('device', 'no device')}; {platform.node()}, {datetime.date.today()}\n")
    print(f"{'measure':<26}{'case':<34}{'value':>10} {'unit':<14}{'ratio':>7}  {'target':<8}")
    for row in check.rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "" if row.met is None else f"{row.target:<8} {'met' if row.met else 'MISSED'}"
        print(f"{row.measure:<26}{row.case:<34}{row.value:>10.3f} {row.unit:<14}{ratio:>7}  {verdict}")
    for name, why in check.skipped.items():
        print(f"skipped {name}: {why}")
    for name, why in check.failed.items():
        print(f"FAILED {name}: {why}")
    print(f"{time.monotonic() - check.started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument("--mib", type=int, default=1024, help="MiB of a measured layer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--driver", default="")
    parser.add_argument("--only", default="", help=f"some of {', '.join(step.__name__ for step in STEPS)}, with commas")
    arguments = parser.parse_args()
    build()
    check = Check(arguments.device, arguments.driver, arguments.mib, arguments.rounds)
    finished = threading.Event()

    def give_up() -> None:
        if not finished.wait(LIMIT_S + 15):
            print("gpu_check: a step hangs; giving up", file=sys.stderr, flush=True)
            os._exit(1)

    threading.Thread(target=give_up, daemon=True).start()
    run(check, [name for name in arguments.only.split(",") if name])
    finished.set()
    show(check)
    if arguments.json:
        rows = [{**dataclasses.asdict(row), "ratio": row.ratio} for row in check.rows]
        report = {
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "host": platform.node(),
            **check.facts,
            "mib": check.mib,
            "rows": rows,
            "skipped": check.skipped,
            "failed": check.failed,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
