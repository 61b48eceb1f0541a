"""The Chrome trace of a timeline."""

from __future__ import annotations

import json
from pathlib import Path

from layercast.timeline import Event, write_chrome_trace


def test_a_process_per_rank_and_a_lane_per_activity(tmp_path: Path) -> None:
    rows = [(1000, 3000, 1, 7, 0, 0), (3000, 3500, 2, 7, 1, 0), (2000, 9000, 3, 7, 0, 0), (500, 1500, 4, 7, 1, 0)]
    events = [Event.from_native(row) for row in rows]
    write_chrome_trace(tmp_path / "t.json", [events[:2], events[2:]])
    trace = json.loads((tmp_path / "t.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["pid"], e["ts"], e["dur"]) for e in spans] == [
        ("writing", 0, 0.5, 2.0),
        ("slot wait", 0, 2.5, 0.5),
        ("copying", 1, 1.5, 7.0),
        ("piece wait", 1, 0.0, 1.0),
    ]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert all((e["pid"], e["tid"]) in names for e in spans)
    assert [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"] == ["rank 0", "rank 1"]
