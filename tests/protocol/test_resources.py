"""What a rank holds does not grow, however often the group is killed and recovers."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import numpy as np
from tests.support.processes import Child, eventually
from tests.support.rig import Region

from layercast import Group, Transport, _native, errors
from layercast.writers import pattern_writer

KINDS = (5000, 64)
EXPERTS = 4
TP = 3
KILLS = 200


def held() -> tuple[int, int, int]:
    """File descriptors, threads, resident KiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    kib = pages * os.sysconf("SC_PAGESIZE") // 1024
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), kib


def growth(seen: list[tuple[int, int, int]]) -> tuple[float, ...]:
    """Of each kind, from the first quarter to the last."""
    quarter = len(seen) // 4
    return tuple(
        statistics.median(last) - statistics.median(first)
        for first, last in zip(zip(*seen[:quarter], strict=True), zip(*seen[-quarter:], strict=True), strict=True)
    )


def test_two_hundred_kills_and_recoveries(tmp_path: Path) -> None:
    """Rank 1 lives through them all; ranks 0 and 2 are killed in turns, wherever they are, and replaced."""
    os.chmod(tmp_path, 0o700)
    shared = Region(4096)
    cells = shared.array.view(np.int64)  # per rank: the generation that it has loaded layers in; then: stop

    def body(rank: int) -> object:
        seen = []
        with (
            Group("cycles", rank, TP, runtime_dir=tmp_path, timeout=60) as group,
            Transport(group, KINDS, num_experts=EXPERTS, piece_bytes=2000, timeout=60, join_timeout=60) as transport,
        ):
            epoch = 0
            while not cells[TP]:
                try:
                    epoch += 1
                    transport.load(epoch, 3, EXPERTS, pattern_writer(epoch))
                    wrong = _native.count_wrong_pattern(epoch, 3, rank, EXPERTS, list(KINDS), transport.destinations)[0]
                    assert wrong == 0
                    if cells[rank] != transport.generation:
                        cells[rank] = transport.generation
                        seen.append(held())
                except (errors.PeerDied, errors.PeerClosed):
                    if cells[TP]:
                        break
                    transport.recover(timeout=60)
                    epoch = 0
        return seen

    ranks = {rank: Child(lambda rank=rank: body(rank)) for rank in range(TP)}
    before = 0
    fds = len(os.listdir("/proc/self/fd"))
    for kill in range(KILLS + 1):
        eventually(lambda before=before: int(cells[:TP].min()) == int(cells[:TP].max()) > before, 60)
        before = int(cells[0])
        if kill == KILLS:
            break
        victim = 2 if kill % 3 else 0
        ranks[victim].kill()
        os.close(ranks[victim].reader)
        ranks[victim] = Child(lambda victim=victim: body(victim))
    cells[TP] = 1
    seen = ranks[1].result(60)
    assert isinstance(seen, list) and len(seen) == KILLS + 1
    descriptors, threads, kib = growth(seen)
    assert descriptors <= 1 and threads <= 1 and kib < 4096, (descriptors, threads, kib, seen[::20])
    for rank in (0, 2):
        ranks[rank].result(60)
    assert len(os.listdir("/proc/self/fd")) <= fds
