"""Defaults that follow from the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from layercast.machine import cache_bytes, default_piece_bytes, default_slots, default_writer_threads


def sysfs(root: Path, *caches: tuple[int, str, str]) -> Path:
    for index, (level, kind, size) in enumerate(caches):
        folder = root / f"cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    return root


def test_caches_as_the_kernel_names_them(tmp_path: Path) -> None:
    root = sysfs(tmp_path, (1, "Data", "32K"), (2, "Instruction", "9K"), (2, "Unified", "1024K"), (3, "Unified", "32M"))
    assert (cache_bytes(2, root), cache_bytes(3, root), cache_bytes(4, root)) == (1 << 20, 32 << 20, None)


@pytest.mark.parametrize(
    ("l2", "l3", "tp", "slots", "piece"),
    [
        ("1024K", "32M", 1, 4, 512 << 10),
        ("1024K", "32M", 8, 8, 256 << 10),  # all slots of all ranks in half of L3
        ("2048K", "1G", 1, 4, 1 << 20),
        ("256K", "4M", 8, 8, 64 << 10),  # never smaller than this
        ("64M", "1G", 1, 4, 4 << 20),  # nor larger than this
    ],
)
def test_pieces_fit_the_caches(tmp_path: Path, l2: str, l3: str, tp: int, slots: int, piece: int) -> None:
    root = sysfs(tmp_path, (2, "Unified", l2), (3, "Unified", l3))
    assert default_piece_bytes(tp, slots, root) == piece


def test_a_kernel_that_says_nothing_gets_a_usual_machines_values(tmp_path: Path) -> None:
    (tmp_path / "cpu0/cache/index0").mkdir(parents=True)
    (tmp_path / "cpu0/cache/index0/level").write_text("not a number")
    assert cache_bytes(2, tmp_path) is None
    assert default_piece_bytes(1, default_slots(True), tmp_path) == 512 << 10


def test_writers_get_the_cores_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    assert [default_writer_threads(tp) for tp in (1, 8, 28, 32, 64)] == [8, 8, 4, 2, 2]
