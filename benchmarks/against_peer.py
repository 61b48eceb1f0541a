"""This library against a version-2 peer and its harness, in alternation; medians and ratios as Markdown.

    python benchmarks/against_peer.py PEER_FOLDER [--runs 3] [--only handoff,latency,...]

PEER_FOLDER holds the harness (`bench.py`, `harness.py`) and the peer. Machines are noisy: only ratios of one run mean
anything, so peer, drop-in module and this library's own API take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ADAPTER = f"{HERE / 'peer_adapter.py'}:Backend"
TP = (1, 2, 4)

Rows = dict[tuple[str, str], list[float]]


def harness(folder: Path, what: str, backend: str, stubs: str, *more: str) -> list[dict[str, Any]]:
    command = [sys.executable, "bench.py", what, "--backend", backend, "--stubs", stubs, *more]
    out = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
    wrong = [row for row in rows if any(row.get("bad_experts") or ())]
    assert not wrong, f"wrong bytes: {wrong}"
    return rows


def own(*what: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "layercast.cli", "bench", *what, "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["lines"]


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _fail(ctx: Any, epoch: int) -> tuple[int, int]:
    """In a rank's process of the harness: (when the writer raised, when this rank raised), in ns."""
    raised = [0]

    def writer(expert: int, *slots: Any) -> None:
        if expert == 3:
            raised[0] = time.monotonic_ns()
            raise ValueError("as it was told to")

    try:
        ctx.tr.join(epoch, 3, 8)
        if ctx.rank == 0:
            ctx.tr.run_py(epoch, 3, 8, writer)
        ctx.tr.wait(epoch)
    except Exception:  # noqa: BLE001 - each implementation has its own
        return raised[0], time.monotonic_ns()
    return raised[0], 0


def poison(folder: Path, backend: str, tp: int, rounds: int) -> list[float]:
    """Milliseconds from the writer's exception until the last rank raises."""
    sys.path.insert(0, str(folder))
    from harness import TINY, Group, w_layers  # type: ignore[import-not-found]

    out = []
    for _ in range(rounds):
        group = Group(tp, TINY, 8, backend=backend)
        group.all(w_layers, e0=1, layers=20, n=8)
        results = group.all(_fail, epoch=21)
        group.stop()
        out.append((max(end for _, end in results) - max(start for start, _ in results)) / 1e6)
    return out


def add(rows: Rows, who: str, what: str, value: float) -> None:
    print(f"{what}: {who} {value:.3g}", file=sys.stderr, flush=True)
    rows.setdefault((what, who), []).append(value)


def one_turn(folder: Path, only: set[str], rows: Rows) -> None:
    backends = (("peer", "peer"), ("drop-in", ADAPTER))
    if "handoff" in only:
        for who, backend in backends:
            for row in harness(folder, "handoff", backend, "SYNC,ASYNC"):
                add(rows, who, f"handoff {row['stub']} tp {row['tp']}, us", row["us_per_expert[med,min,max]"][0])
        for line in own("handoff"):
            if line["case"].startswith("defaults"):
                add(rows, "own API", f"handoff SYNC {line['case'][10:]}, us", line["value"])
    if "beside" in only:
        with busy(2):
            # Milliseconds each: the usual 20,000 experts would take an hour.
            for row in harness(folder, "handoff", "peer", "SYNC", "--experts", "300", "--runs", "3"):
                add(rows, "peer", f"beside 2 busy, tp {row['tp']}, us", row["us_per_expert[med,min,max]"][0])
        for line in own("beside"):
            if line["measure"] != "memcpy":
                add(rows, "own API", f"beside 2 busy, {line['case'][10:]}, us", line["value"])
    if "latency" in only:
        for who, backend in backends:
            for row in harness(folder, "latency", backend, "SYNC"):
                p50, p99 = row["all_ranks_us[p50,p99,min,max]"][:2]
                add(rows, who, f"join to wait p50 tp {row['tp']}, us", p50)
                add(rows, who, f"join to wait p99 tp {row['tp']}, us", p99)
    if "idle" in only:
        for who, backend in backends:
            for row in harness(folder, "idle", backend, "SYNC"):
                add(rows, who, f"idle tp {row['tp']}, CPU s/s", max(row["cpu_s_per_s_each"]))
                add(rows, who, f"idle tp {row['tp']}, switches/s", max(row["vol_switches_per_s_each"]))
    if "throughput" in only:
        for who, backend in backends:
            for row in harness(folder, "throughput", backend, "SYNC"):
                add(rows, who, f"throughput tp {row['tp']}, GB/s", row["gbps[med,min,max]"][0])
        for line in own("staged", "direct"):
            if line["measure"] == "memcpy":
                add(rows, f"memcpy, {line['case']}", "throughput, GB/s", line["value"])
            else:
                add(rows, f"own API, {line['measure']}", f"throughput {line['case']}, GB/s", line["value"])
    if "poison" in only:
        for tp in TP[1:]:
            for who, backend in backends:
                add(rows, who, f"poison to all ranks tp {tp}, ms", statistics.median(poison(folder, backend, tp, 15)))
        for line in own("poison"):
            if line["case"].startswith("heard") and "tp 1" not in line["case"]:
                add(rows, "own API", f"poison to all ranks {line['case'][14:]}, ms", line["value"])
    if "writer" in only:
        for who, backend in backends:
            for row in harness(folder, "writer", backend, "SYNC"):
                added = row["py_empty_us[med,min,max]"][0] - row["native_us[med,min,max]"][0]
                add(rows, who, f"Python writer adds tp {row['tp']}, us", added)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="handoff,beside,latency,idle,throughput,poison,writer")
    arguments = parser.parse_args()
    rows: Rows = {}
    for _ in range(arguments.runs):
        one_turn(arguments.peer.resolve(), set(arguments.only.split(",")), rows)
    print("| figure | who | median | all runs | x peer |\n|---|---|---|---|---|")
    for (what, who), values in rows.items():
        peer = rows.get((what, "peer"))
        ratio = f"{statistics.median(values) / statistics.median(peer):.2f}" if peer and statistics.median(peer) else ""
        shown = ", ".join(f"{value:.3g}" for value in values)
        print(f"| {what} | {who} | {statistics.median(values):.3g} | {shown} | {ratio} |")


if __name__ == "__main__":
    main()
