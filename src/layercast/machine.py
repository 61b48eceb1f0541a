"""What this machine is like, where it decides defaults: caches, and cores that this process may use."""

from __future__ import annotations

import os
import re
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_L2, _L3 = 1 << 20, 16 << 20  # where the kernel does not say

_SMALLEST_PIECE, _LARGEST_PIECE = 64 << 10, 4 << 20


def cache_bytes(level: int, root: Path = _CPUS) -> int | None:
    """Size in bytes of a cache of this level as one core sees it; None where the kernel does not say."""
    for index in sorted(root.glob("cpu0/cache/index*")):
        try:
            if int((index / "level").read_text()) != level or "Instruction" in (index / "type").read_text():
                continue
            found = re.fullmatch(r"(\d+)([KMG]?)", (index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
        if found:
            return int(found[1]) * _UNITS.get(found[2], 1)
    return None


def default_slots(prompt: bool) -> int:
    """Slots per rank. `prompt`: the device has finished a copy when it takes the next.

    Then two slots are filled and read at a time, and two cover the wake-ups in between. A device with a queue of its
    own keeps half of the slots in flight while the other half is acknowledged and filled again.
    """
    return 4 if prompt else 8


def default_piece_bytes(tp: int, slots: int, root: Path = _CPUS) -> int:
    """Bytes per rank in a piece: one fits half of a core's L2, all slots of all ranks fit half of L3.

    Then the consumer finds in the caches what the writer has just stored, and memory sees one read and one write of
    each byte instead of two: see docs/performance.md.
    """
    own = (cache_bytes(2, root) or _L2) // 2
    shared = (cache_bytes(3, root) or _L3) // 2 // (slots * tp)
    piece = min(own, shared)
    return max(_SMALLEST_PIECE, min(piece, _LARGEST_PIECE)) // _SMALLEST_PIECE * _SMALLEST_PIECE


def default_writer_threads(tp: int) -> int:
    """Rank 0's writing threads: the cores that are left when every rank's consumer has one, 1 to 8.

    Two at least where several ranks share few cores: their consumers are then awake on the core of a single writer
    and hold up everybody, while two writers fill what the consumers leave of both cores.
    """
    cores = len(os.sched_getaffinity(0))
    return max(2 if tp > 1 and cores > 1 else 1, min(8, cores - tp))
