"""The host: memory, its limits, and what processes may see of each other."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from layercast import numa
from layercast.doctor.findings import Finding, gib
from layercast.errors import ResourceError
from layercast.memory import headroom

_HOST_PID_NAMESPACE = 0xEFFFFFFC  # the kernel's number of the first one
_PAGES = "sys/kernel/mm/transparent_hugepage"


def examine_host(root: Path = Path("/")) -> list[Finding]:
    """`root`: where /proc, /sys and /dev are looked for."""
    return [_memory(root), _memlock(), _huge_pages(root), _pid_namespace(root), _shm(root), _nodes(root)]


def _memory(root: Path) -> Finding:
    try:
        room = headroom(root)
    except (OSError, ResourceError) as error:
        return Finding("memory", f"unknown: {error}", "how much can be reserved is not known", "problem")
    return Finding(
        "memory",
        f"{gib(room.nbytes)} can be reserved, limited by {room.limit}",
        "arenas and slots of all ranks together must fit; more is refused before anything is loaded",
        facts={"bytes": room.nbytes, "limit": room.limit},
    )


def _memlock() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return Finding("memlock", "unlimited", "pinning does not fail for this reason", facts={"bytes": None})
    return Finding(
        "memlock",
        gib(limit),
        "some drivers and containers count pinned memory against it: if pinning fails, raise it (ulimit -l unlimited,"
        " docker --ulimit memlock=-1), or use cuda,pin=permissive",
        "note",
        {"bytes": limit},
    )


def _setting(path: Path) -> str:
    """The chosen word of a file such as "always [madvise] never"; empty where there is no such file."""
    try:
        text = path.read_text()
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def _huge_pages(root: Path) -> Finding:
    own, shared = _setting(root / _PAGES / "enabled"), _setting(root / _PAGES / "shmem_enabled")
    facts = {"enabled": own, "shmem_enabled": shared}
    if not own:
        return Finding("huge pages", "not offered by this kernel", "arenas lie in small pages: slower", "note", facts)
    found = f"for arenas {own!r}, for slots {shared or 'not offered'!r}"
    if own == "never":
        return Finding("huge pages", found, "arenas lie in small pages: slower to fill and to pin", "note", facts)
    return Finding("huge pages", found, "arenas ask for them and get them while memory is not fragmented", facts=facts)


def _pid_namespace(root: Path) -> Finding:
    link = root / "proc/self/ns/pid"
    try:
        number = int(str(link.readlink()).strip("pid:[]"))
    except (OSError, ValueError) as error:
        return Finding("pid namespace", f"unknown: {error}", "all ranks must be able to see each other", "note")
    if number == _HOST_PID_NAMESPACE:
        return Finding("pid namespace", "the host's", "ranks see each other live and die", facts={"number": number})
    return Finding(
        "pid namespace",
        f"one of its own ({number}): a container",
        "all ranks of a group must run inside it, or share it (docker --pid): else a dead peer goes unnoticed",
        "note",
        {"number": number},
    )


def _shm(root: Path) -> Finding:
    means = "not used: shared memory lies in memfds, so a small one does no harm here; frameworks beside may need it"
    try:
        stat = os.statvfs(root / "dev/shm")
    except OSError as error:
        return Finding("/dev/shm", error.strerror or str(error), means, "note")
    total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    return Finding("/dev/shm", f"{gib(free)} free of {gib(total)}", means, facts={"bytes": total, "free": free})


def _nodes(root: Path) -> Finding:
    there = numa.nodes(root / "sys")
    if not there:
        return Finding("NUMA nodes", "the kernel does not say", "slots lie wherever they come to lie", "note")
    if len(there) == 1:
        return Finding("NUMA nodes", "one", "memory is equally near to everything", facts={"nodes": there})
    return Finding(
        "NUMA nodes",
        f"{len(there)}: {', '.join(map(str, there))}",
        "slots and arenas of a rank are asked for on the node next to its device",
        facts={"nodes": there},
    )
