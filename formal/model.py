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

#: What is run of the model as it is: ranks, slots, pieces, epochs; which ranks (a bit each) cancel, fail, die.
SMALL = {
    "no fault": {"S": 2, "P": 3},
    "three ranks": {"R": 3, "E": 1},
    "cancel": {"S": 2, "CANCEL": 2},
    "cancel, three epochs": {"P": 1, "E": 3, "CANCEL": 2},
    "failure and recovery": {"P": 1, "FAIL": 2},
}
LARGE = {
    "both cancel": {"P": 1, "CANCEL": 3},
    "both fail": {"P": 1, "E": 1, "FAIL": 3},
    "a failure and a cancel": {"P": 1, "FAIL": 1, "CANCEL": 2},
    "death of the last rank": {"P": 1, "E": 1, "DEATH": 2, "SEARCH": 1},
    "death of rank 0": {"P": 1, "E": 1, "DEATH": 1, "SEARCH": 2},
    "the last rank a zombie": {"P": 1, "E": 1, "DEATH": 2, "ZOMBIE": 1, "SEARCH": 2},
    "rank 0 a zombie": {"P": 1, "E": 1, "DEATH": 1, "ZOMBIE": 1, "SEARCH": 2},
}
#: What spin must refute; numbers as in region.pml.
MUTANTS = {
    "the last rank's acknowledgement is not waited for": {"MUTANT": 1, "P": 3},
    "acknowledged before the copy has finished": {"MUTANT": 2, "P": 3},
    "pieces of a layer given up are not passed over": {"MUTANT": 3, "CANCEL": 1},
    "done or given up without compare-and-swap": {"MUTANT": 4, "P": 1, "CANCEL": 2},
    "recovery in the same region, wiped": {"MUTANT": 5, "P": 1, "E": 1, "DEATH": 2, "ZOMBIE": 1},
    "done only after the last acknowledgement": {"MUTANT": 6, "P": 1, "FAIL": 2},
    "ready before epoch and number": {"MUTANT": 7, "P": 3},
    "a layer given up is left while copies move": {"MUTANT": 10, "CANCEL": 2},
    "the next epoch without waiting for returns": {"MUTANT": 11, "P": 1, "CANCEL": 2},
    "rank 0 does not look for wishes": {"MUTANT": 12, "P": 1, "CANCEL": 2},
    "nobody hears of a death": {"MUTANT": 13, "P": 1, "E": 1, "DEATH": 2},
    "waits do not look for poison": {"MUTANT": 14, "P": 1, "FAIL": 2},
    "what was skipped is forgotten": {"MUTANT": 16, "P": 1, "E": 3, "CANCEL": 2},
    "a follower does not look for wishes": {"MUTANT": 17, "P": 1, "CANCEL": 2},
    "a failure that comes late takes a layer back": {"MUTANT": 18, "P": 1, "FAIL": 2},
    "one wish per rank": {"MUTANT": 19, "P": 1, "CANCEL": 2, "CANCELS": 2},
    "rank 0 passes over what it gave up": {"MUTANT": 20, "P": 1, "CANCEL": 2},
    "a follower waits for another to give it up": {"MUTANT": 21, "P": 1, "CANCEL": 2},
}
LARGE_MUTANTS = {
    "poison without compare-and-swap": {"MUTANT": 8, "P": 1, "E": 1, "FAIL": 3},
    "slots kept though rank 0 was replaced": {"MUTANT": 9, "P": 1, "E": 1, "DEATH": 1, "ZOMBIE": 1},
    "a zombie recovers into its seat": {"MUTANT": 15, "P": 1, "E": 1, "DEATH": 2, "ZOMBIE": 1},
}


#: How states are remembered: all of them whole, 64 bits of each, or a few bits of each, for eight minutes: then most
#: are seen, not all.
_SEARCHES: dict[int, tuple[str, list[str]]] = {
    0: ("-DCOLLAPSE", []),
    1: ("-DHC4", ["-w28"]),
    2: ("-DBITSTATE", ["-w33", "-Q8"]),
}


def check(sizes: dict[str, int], seconds: float, optimised: str = "-O2") -> tuple[int, int]:
    """(errors, states). Raises RuntimeError where spin comes to no end.

    `optimised`: small models take longer to compile than to check.
    """
    options = [f"-D{name}={value}" for name, value in sizes.items() if name != "SEARCH"]
    store, space = _SEARCHES[sizes.get("SEARCH", 0)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["spin", "-a", *options, str(MODEL)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        build = [
            "gcc",
            optimised,
            "-w",
            store,
            "-DSAFETY",
            "-DVECTORSZ=4096",
            "-DMEMLIM=12000",
            "-o",
            "pan",
            "pan.c",
        ]
        subprocess.run(build, cwd=folder, check=True)
        run = subprocess.run(["./pan", "-m300000", *space], cwd=folder, capture_output=True, text=True, timeout=seconds)
    errors = re.search(r"errors: (\d+)", run.stdout)
    states = re.search(r"([\d.e+]+) states, stored", run.stdout)
    if errors is None or states is None or "max search depth too small" in run.stdout or "out of memory" in run.stdout:
        raise RuntimeError(run.stdout[-2000:])
    return int(errors[1]), int(float(states[1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="without the sizes that take minutes and gigabytes")
    arguments = parser.parse_args()
    for tool, package in (("spin", "spin"), ("gcc", "gcc")):
        if shutil.which(tool) is None:
            print(f"{tool} is missing: apt-get install {package}", file=sys.stderr)
            return 1
    failed = 0
    print("| model | verdict | states | s |\n|---|---|---|---|")
    for name, sizes in {**SMALL, **({} if arguments.small else LARGE)}.items():
        started = time.monotonic()
        errors, states = check(sizes, 1800)
        failed += errors != 0
        verdict = "**an error**" if errors else "no error in what was seen" if sizes.get("SEARCH") == 2 else "holds"
        print(f"| {name}: {sizes} | {verdict} | {states:,} | {time.monotonic() - started:.1f} |", flush=True)
    print("\n| mutant | verdict | states | s |\n|---|---|---|---|")
    for name, sizes in {**MUTANTS, **({} if arguments.small else LARGE_MUTANTS)}.items():
        started = time.monotonic()
        errors, states = check(sizes, 1800)
        failed += errors == 0
        verdict = "refuted" if errors else "**not refuted**"
        print(f"| {name} | {verdict} | {states:,} | {time.monotonic() - started:.1f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
