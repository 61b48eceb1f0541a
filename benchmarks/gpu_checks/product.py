"""This library on the device: its contract, its bytes, its speed against the bus."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import time

from gpu_checks.report import PIECE, ROOT, SHAPES, Check, Row, Skip
from gpu_checks.rig import PinnedLayer, opened, timed_layers


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
        device = Cuda(check.device, driver=check.driver or None).open()
        with contextlib.closing(device):
            layer = PinnedLayer(device, kinds, experts)
            with opened(check, kinds, experts, device=device) as transport:
                transport.use_arena(layer)  # type: ignore[arg-type]
                seconds, _, whole = timed_layers(check, transport, experts, None)
            layer.close()
        check.rows.append(Row("direct", name, nbytes / seconds / 1e9, "GB/s", limit).judged(at_least=0.97))
        check.rows.append(Row("direct: whole process", name, whole, "cores").judged(below=0.2))


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
