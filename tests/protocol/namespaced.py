"""What a rank of test_namespaces.py runs, as pid 1 of a pid namespace of its own: python -m tests.protocol.namespaced.

It loads layers until somebody dies, says what it heard, recovers and goes on. One JSON object per line on stdout.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from layercast import Group, Transport, _native, errors
from layercast.writers import pattern_writer

KINDS = (5000, 64)
EXPERTS = 8


def say(**what: object) -> None:
    print(json.dumps({**what, "at": time.monotonic()}), flush=True)


def main(rank: int, tp: int, folder: Path, mode: str) -> None:
    pid, _, space = _native.identity()
    say(pid=pid, space=space)
    with (
        Group("spaces", rank, tp, runtime_dir=folder, timeout=60) as group,
        Transport(group, KINDS, num_experts=EXPERTS, piece_bytes=2000, timeout=60, join_timeout=60) as transport,
    ):
        epoch, said = 0, False
        while True:
            epoch += 1
            try:
                transport.load(epoch, 3, EXPERTS, pattern_writer(7))
                if not said and mode == "children" and os.fork() == 0:
                    time.sleep(1000)
                if not said:
                    wrong = _native.count_wrong_pattern(7, 3, rank, EXPERTS, list(KINDS), transport.destinations)[0]
                    say(loaded=epoch, wrong=wrong)
                    said = True
                if mode == "idle":
                    while not transport.failed:
                        time.sleep(0.001)
            except errors.LayercastError as error:
                say(error=type(error).__name__, rank=error.rank, pid=error.pid)
                transport.recover(timeout=60)
                epoch, said = 0, False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
