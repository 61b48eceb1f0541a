"""What each rank did when, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: In the order of the native core's numbers.
DOINGS = ("", "writing", "slot wait", "copying", "piece wait")


@dataclass(frozen=True)
class Event:
    """One stretch of time of one rank. Nanoseconds of CLOCK_MONOTONIC: the same clock on all ranks of a machine.

    `doing`: rank 0's `writing` and `slot wait` (per `worker`, its writing threads), every rank's `copying` (from
    hand-over to the device until done, so stretches overlap) and `piece wait`.
    """

    start_ns: int
    end_ns: int
    doing: str
    epoch: int
    piece: int
    worker: int

    @classmethod
    def from_native(cls, row: Sequence[int]) -> Event:
        """From the native core's six numbers."""
        start, end, doing, epoch, piece, worker = row
        return cls(start, end, DOINGS[doing], epoch, piece, worker)


def chrome_trace(events: Sequence[Sequence[Event]]) -> dict[str, object]:
    """The ranks' events as a Chrome trace (JSON object format, Trace Event Format): a process per rank."""
    origin = min((event.start_ns for rank in events for event in rank), default=0)
    out: list[dict[str, object]] = []
    for rank, own in enumerate(events):
        out.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        names: dict[str, int] = {}
        for event in own:
            writes = event.doing in ("writing", "slot wait")
            lane = f"writer {event.worker}" if writes else event.doing
            if event.doing == "copying":
                lane = f"copying, slot {event.piece % 8}"  # stretches overlap: Chrome wants a lane for each
            tid = names.setdefault(lane, len(names) + 1)
            out.append(
                {
                    "ph": "X",
                    "name": event.doing,
                    "pid": rank,
                    "tid": tid,
                    "ts": (event.start_ns - origin) / 1e3,
                    "dur": (event.end_ns - event.start_ns) / 1e3,
                    "args": {"epoch": event.epoch, "piece": event.piece},
                }
            )
        for lane, tid in names.items():
            out.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def write_chrome_trace(path: Path, events: Sequence[Sequence[Event]]) -> None:
    """Writes `chrome_trace` to a file."""
    path.write_text(json.dumps(chrome_trace(events)))
