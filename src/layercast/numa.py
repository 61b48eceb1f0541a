"""Which memory is near which device: NUMA nodes, as far as the kernel tells."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import re
from pathlib import Path

log = logging.getLogger("layercast")

_SYS = Path("/sys")
_MBIND = {"x86_64": 237, "aarch64": 235}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}
_PREFERRED, _MOVE = 1, 2
_NODE_OF_ADDRESS = 3  # MPOL_F_NODE | MPOL_F_ADDR
_MOST_NODES = 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def nodes(root: Path = _SYS) -> list[int]:
    """The nodes that have memory; empty where the kernel does not say."""
    try:
        text = (root / "devices/system/node/has_memory").read_text()
    except OSError:
        return []
    out: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        out.extend(range(int(first), int(last or first) + 1))
    return out


def node_of_device(bus_id: str, root: Path = _SYS) -> int | None:
    """The node next to which a PCI device (0000:3b:00.0) hangs; None: unknown, or the machine has only one."""
    if not bus_id:
        return None
    try:
        node = int((root / "bus/pci/devices" / bus_id.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def node_near(bus_id: str, root: Path = _SYS) -> int | None:
    """As `node_of_device`, where there is more than one to choose from."""
    return node_of_device(bus_id, root) if len(nodes(root)) > 1 else None


def prefer(address: int, nbytes: int, node: int, *, move: bool = False) -> str:
    """From now on pages in these bytes come from the node, while it has room; `move`: those that are there, too.

    Pages that other processes have mapped stay where they are. The address lies on a page. Returns why the kernel
    refused, or nothing.
    """
    number = _MBIND.get(platform.machine())
    if number is None:
        return f"not known how on {platform.machine()}"
    mask = (ctypes.c_ulong * (_MOST_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    where = (ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(nbytes))
    how = (ctypes.c_long(_PREFERRED), mask, ctypes.c_ulong(_MOST_NODES), ctypes.c_uint(_MOVE if move else 0))
    if _libc.syscall(*where, *how) != 0:
        return os.strerror(ctypes.get_errno())
    return ""


def place_near(bus_id: str, address: int, nbytes: int, what: str, *, root: Path = _SYS) -> int | None:
    """Asks for these pages on the node next to a PCI device; returns that node, or None where there is none to prefer.

    Those that are there already are moved, as far as no other process has them mapped. One warning where the kernel
    refuses: the bytes then cross from node to node, which is slower and nothing else.
    """
    node = node_near(bus_id, root)
    if node is None:
        return None
    for page in range(address, address + nbytes, mmap.PAGESIZE):
        ctypes.c_char.from_address(page).value  # noqa: B018 - only pages that this process has mapped are moved
    if refused := prefer(address, nbytes, node, move=True):
        log.warning("%s: could not be placed on NUMA node %d, next to device %s: %s", what, node, bus_id, refused)
    return node


def node_of_address(address: int) -> int | None:
    """Where the page lies that holds this byte, which is touched if it does not yet; None where nobody says."""
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    node = ctypes.c_int(-1)
    done = _libc.syscall(
        ctypes.c_long(number),
        ctypes.byref(node),
        None,
        ctypes.c_ulong(0),
        ctypes.c_void_p(address),
        ctypes.c_ulong(_NODE_OF_ADDRESS),
    )
    return node.value if done == 0 and node.value >= 0 else None
