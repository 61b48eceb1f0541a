"""Runs the whole fault matrix and prints it as Markdown: `make faults`. Exit code 1 where a cell is wrong."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.cell import ACTIONS, DEVICE_ACTIONS, TP, Cell, Met, cells, run
from tests.support.fake_cuda import build

#: What may happen to the ranks where nothing went wrong, by action.
OTHERS = {
    "SIGKILL": {"PeerDied"},
    "SIGSTOP, SIGCONT": {"LayerTimeout", "JoinTimeout", "done"},
    "exception": {"ProtocolError", "ClosedWhileActive", "PeerClosed", "done"},
    "Ctrl-C": {"GroupError", "ClosedWhileActive", "PeerClosed", "done"},
    "close": {"ClosedWhileActive", "PeerClosed", "done"},
    "cancel": {"Cancelled, next layer right", "done"},
    "device error": {"DeviceError"},
    "device hang": {"LayerTimeout"},
}
#: After the layer was complete everywhere, nothing that happens can undo it.
LATE = ("wait.returned", "producer.before_done", "consumer.acknowledged", "wait.entered")


def fault(cell: Cell, met: list[Met]) -> str:
    """What is wrong with the cell, or nothing."""
    allowed = set(OTHERS[cell.action])
    if cell.action == "SIGKILL" and cell.step in LATE:
        allowed.add("done")
    for rank, one in enumerate(met):
        if rank == cell.rank and cell.action not in ("cancel",):
            continue
        if one.what not in allowed:
            return f"rank {rank} met {one.what}: {one.text}"
        if one.what == "PeerDied" and one.named != cell.rank:
            return f"rank {rank} blamed rank {one.named}"
    raised = {one.what for one in met if one.what.startswith("Cancelled")}
    if raised and len({one.what for one in met}) > 1:
        return "some ranks finished the layer, others gave it up"
    return ""


def main() -> int:
    os.environ["LAYERCAST_CUDA_DRIVER"] = str(build())  # its processes alone use it
    print("# What every rank meets when something goes wrong\n")
    print(
        f"Output of `make faults`: {TP} ranks, a fault at one step of rank 0 or of the last one, in the second layer."
    )
    print("Times are from the fault until that rank raised. The limit for a peer that stands still is 500 ms here.\n")
    print("| fault | step | rank | device | rank 0 | rank 1 | rank 2 |\n|---|---|---|---|---|---|---|")
    wrong: list[str] = []
    times: dict[str, list[float]] = {}
    started = time.monotonic()
    everything = cells()
    for cell in everything:
        with tempfile.TemporaryDirectory() as folder:
            try:
                met = run(cell, Path(folder))
            except AssertionError as error:
                wrong.append(f"{cell}: {error}")
                print(f"| {cell.action} | {cell.step} | {cell.rank} | {cell.device} | **{error}** | | |")
                continue
        if text := fault(cell, met):
            wrong.append(f"{cell}: {text}")
        for rank, one in enumerate(met):
            if rank != cell.rank and one.what not in ("done", "killed"):
                times.setdefault(cell.action, []).append(one.ms)
        print(
            f"| {cell.action} | {cell.step} | {cell.rank} | {cell.device} | {' | '.join(map(str, met))} |", flush=True
        )
    print("\n| fault | ranks that raised | median ms | greatest ms |\n|---|---|---|---|")
    for action in (*ACTIONS, *DEVICE_ACTIONS):
        values = times.get(action) or [0.0]
        print(f"| {action} | {len(values)} | {statistics.median(values):.1f} | {max(values):.1f} |")
    print(f"\n{len(everything)} cells in {time.monotonic() - started:.0f} s, {len(wrong)} not as they should be.")
    for text in wrong:
        print(f"- {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
