"""Runs the model at small sizes, then its mutants, each of which spin must refute: `make model`."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).with_name("layer.pml")

#: What is run of the model as it is: ranks, slots, pieces, epochs, faults.
SIZES = {
    "no fault": {"R": 2, "S": 2, "P": 3, "E": 2, "FAULTS": 0},
    "one slot": {"R": 2, "S": 1, "P": 2, "E": 2, "FAULTS": 0},
    "three ranks": {"R": 3, "S": 1, "P": 2, "E": 1, "FAULTS": 0},
    "cancel": {"R": 2, "S": 2, "P": 2, "E": 2, "FAULTS": 1},
    "death and recovery": {"R": 2, "S": 1, "P": 1, "E": 2, "FAULTS": 2},
}
FULL = {
    "death and recovery, two slots": {"R": 2, "S": 2, "P": 2, "E": 2, "FAULTS": 2},
    "three ranks, cancel": {"R": 3, "S": 1, "P": 1, "E": 1, "FAULTS": 1},
}
MUTANTS = {
    "the last rank's acknowledgement is not waited for": {"MUTANT": 1, "P": 3},
    "acknowledged before the copy has finished": {"MUTANT": 2, "P": 3},
    "pieces of a layer given up are not passed over": {"MUTANT": 3, "P": 2, "FAULTS": 1},
    "done or given up without compare-and-swap": {"MUTANT": 4, "P": 2, "FAULTS": 1},
}


def check(sizes: dict[str, int], seconds: float) -> tuple[int, int]:
    """(errors, states). Raises RuntimeError where spin comes to no end."""
    options = [f"-D{name}={value}" for name, value in sizes.items()]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spin", "-a", *options, str(MODEL)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        build = ["gcc", "-O2", "-w", "-DCOLLAPSE", "-DSAFETY", "-DVECTORSZ=4096", "-DMEMLIM=3500", "-o", "pan", "pan.c"]
        subprocess.run(build, cwd=folder, check=True)
        run = subprocess.run(["./pan", "-m500000"], cwd=folder, capture_output=True, text=True, timeout=seconds)
    errors = re.search(r"errors: (\d+)", run.stdout)
    states = re.search(r"(\d+) states, stored", run.stdout)
    if errors is None or states is None or "max search depth too small" in run.stdout or "out of memory" in run.stdout:
        raise RuntimeError(run.stdout[-2000:])
    return int(errors[1]), int(states[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="also sizes that take minutes and gigabytes")
    arguments = parser.parse_args()
    for tool, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            print(f"{tool} is missing: apt-get install {package}", file=sys.stderr)
            return 1
    failed = 0
    print("| model | verdict | states | s |\n|---|---|---|---|")
    for name, sizes in {**SIZES, **(FULL if arguments.full else {})}.items():
        started = time.monotonic()
        errors, states = check(sizes, 900)
        failed += errors != 0
        verdict = "holds" if errors == 0 else "**an error**"
        print(f"| {name}: {sizes} | {verdict} | {states:,} | {time.monotonic() - started:.1f} |", flush=True)
    print("\n| mutant | verdict | states | s |\n|---|---|---|---|")
    for name, sizes in MUTANTS.items():
        started = time.monotonic()
        errors, states = check(sizes, 900)
        failed += errors == 0
        verdict = "refuted" if errors else "**not refuted**"
        print(f"| {name} | {verdict} | {states:,} | {time.monotonic() - started:.1f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
