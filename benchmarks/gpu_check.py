"""Everything that wants a GPU, in one run under 6 minutes: build, contract, bytes, and figures against the bus.

    python benchmarks/gpu_check.py [--json FILE] [--mib 1024] [--device 0] [--driver LIBRARY]

Builds the package if it is not there (`make .venv/.package`). Prints one table; --json also writes everything to FILE.
Exit code 1 where a step failed or bytes were wrong. A missed target is marked, not an error; where a driver lacks a
function, the row says so. `--driver`: another driver than the machine's, such as the tests' fake one, whose figures
mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_checks import batch, columns, completion, product, with_torch
from gpu_checks.report import ROOT, Check, Skip, show

STARTED = "GPU_CHECK_STARTED"  # monotonic seconds, from the run that built to the one that measures

STEPS: dict[Callable[[Check], None], float] = {
    product.bandwidth: 15,
    product.throughput: 30,
    batch.batch: 30,
    columns.columns: 20,
    completion.completion: 30,
    with_torch.baseline: 25,
    product.right_bytes: 60,
    product.latency: 10,
    product.registration: 10,
    with_torch.overlap: 15,
    product.contract: 60,
}
"""Seconds that each is given on hardware; a step that has not that much left is not begun."""


def run(check: Check, only: list[str]) -> None:
    for step, budget in STEPS.items():
        name = step.__name__
        if only and name not in only:
            continue
        if check.left < budget:
            check.skipped[name] = f"{check.left:.0f} s were left, it may take {budget:.0f}"
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        begun, check.running = time.monotonic(), name
        try:
            step(check)
        except Skip as reason:
            check.skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001 - the other steps still have something to say
            check.failed[name] = f"{type(error).__name__}: {error}"
        check.seconds[name] = round(time.monotonic() - begun, 3)


def build() -> None:
    """The package, where this Python has none: then the same script once more with the one that has."""
    if importlib.util.find_spec("layercast") is not None:
        return
    own = ROOT / ".venv" / "bin" / "python"
    if Path(sys.executable).absolute() == own:
        sys.exit("gpu_check: .venv has no layercast even after the build")
    os.environ.setdefault(STARTED, str(time.monotonic()))
    subprocess.run(["make", ".venv/.package"], cwd=ROOT, check=True, stdout=sys.stderr)
    os.execv(own, [str(own), *sys.argv])


def write(check: Check, path: Path | None) -> None:
    show(check)
    if path is None:
        return
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "host": platform.node(),
        **check.facts,
        "mib": check.mib,
        "rows": [{**dataclasses.asdict(row), "ratio": row.ratio} for row in check.rows],
        "answers": check.answers,
        "seconds": check.seconds,
        "skipped": check.skipped,
        "failed": check.failed,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


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
    check.started = float(os.environ.pop(STARTED, check.started))
    finished = threading.Event()

    def give_up() -> None:
        if not finished.wait(max(0, check.left) + 5):
            check.failed[check.running] = "did not end in its time"  # and cannot be ended: what was found is kept
            write(check, arguments.json)
            sys.stdout.flush()
            os._exit(1)

    threading.Thread(target=give_up, daemon=True).start()
    run(check, [name for name in arguments.only.split(",") if name])
    finished.set()
    write(check, arguments.json)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
