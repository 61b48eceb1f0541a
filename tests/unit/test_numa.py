"""Which node is near a device, and pages asked for on it."""

from __future__ import annotations

import ctypes
import logging
import mmap
from pathlib import Path

import pytest

from layercast import numa

BUS = "0000:3B:00.0"


def tree(root: Path, memory: str, node: str) -> Path:
    (root / "devices/system/node").mkdir(parents=True)
    (root / "devices/system/node/has_memory").write_text(memory + "\n")
    device = root / "bus/pci/devices" / BUS.lower()
    device.mkdir(parents=True)
    (device / "numa_node").write_text(node + "\n")
    return root


@pytest.mark.parametrize(
    ("memory", "node", "there", "device", "near"),
    [
        ("0", "0", [0], 0, None),
        ("0-1", "1", [0, 1], 1, 1),
        ("0,2-3", "-1", [0, 2, 3], None, None),
        ("0-1", "what", [0, 1], None, None),
    ],
)
def test_what_the_kernel_says(
    tmp_path: Path, memory: str, node: str, there: list[int], device: int | None, near: int | None
) -> None:
    root = tree(tmp_path, memory, node)
    assert numa.nodes(root) == there
    assert numa.node_of_device(BUS, root) == device
    assert numa.node_near(BUS, root) == near
    assert numa.node_near("", root) is None


def test_where_it_says_nothing(tmp_path: Path) -> None:
    assert numa.nodes(tmp_path) == []
    assert numa.node_of_device(BUS, tmp_path) is None


def test_pages_are_placed_or_it_is_said_why_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = mmap.mmap(-1, 16 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = (numa.nodes() or [0])[0]
    if refused := numa.prefer(address, len(memory), first):
        pytest.skip(f"this kernel places no pages: {refused}")
    with caplog.at_level(logging.WARNING, "layercast"):
        root = tree(tmp_path / "right", f"{first}-{first + 1}", str(first))
        assert numa.place_near(BUS, address, len(memory), "slots", root=root) == first
        assert numa.node_of_address(address) == first
        assert not caplog.records
        root = tree(tmp_path / "wrong", "0-900", "900")
        assert numa.place_near(BUS, address, len(memory), "slots of rank 1", root=root) == 900
    assert "slots of rank 1: could not be placed on NUMA node 900" in caplog.text
