"""The GPUs: driver, devices, how they are connected, and how fast bytes really get there."""

from __future__ import annotations

import contextlib
import importlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layercast import _native, numa
from layercast.devices import Cuda
from layercast.doctor.findings import Finding, gib
from layercast.errors import LayercastError

_MEASURED_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
_ROUNDS = 3
# Bytes per second and lane, by PCIe generation: 8b/10b, then 128b/130b.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}


@dataclass(frozen=True)
class Link:
    """A device's PCI Express link as it is now, and the most that it can be."""

    generation: int
    width: int
    most_generation: int
    most_width: int

    @property
    def bytes_per_second(self) -> float:
        """What the most could carry, less packets' headers."""
        return _LANE.get(self.most_generation, 0.0) * self.most_width


def examine_gpus(cuda: Cuda | None = None, *, measure: bool = True, root: Path = Path("/sys")) -> list[Finding]:
    """Driver and devices of this process. `root`: where the kernel tells of devices."""
    cuda = cuda or Cuda()
    try:
        version, devices = _native.cuda_driver(cuda.library)
    except LayercastError as error:
        means = "device cuda is refused here; host and link:RATE work without"
        return [Finding("CUDA driver", error.message, means, "note", {"version": None})]
    text = f"{version // 1000}.{version % 1000 // 10}"
    batch = "copies can be batched (batch=yes)" if version >= 13000 else "too old for batched copies; nothing else"
    out = [Finding("CUDA driver", text, batch, facts={"version": version, "devices": len(devices)})]
    if not devices:
        out.append(Finding("GPUs", "none that this process sees", "device cuda is refused here", "problem"))
    for ordinal, name, bus_id, nbytes in devices:
        facts = {"ordinal": ordinal, "name": name, "bus_id": bus_id, "bytes": nbytes}
        out.append(Finding(f"GPU {ordinal}", f"{name}, {gib(nbytes)}, at {bus_id}", f"rank {ordinal}'s", facts=facts))
        link = read_link(bus_id, root)
        out.append(_about_link(ordinal, link))
        if measure:
            out.extend(_measure(cuda, ordinal, bus_id, root))
    return out


def read_link(bus_id: str, root: Path) -> Link | str:
    """From NVML where nvidia-ml-py is installed, else from the kernel; or why neither knows."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return _link_of_kernel(bus_id, root)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        found = _link_of_kernel(bus_id, root)
        return f"NVML: {error}; {found}" if isinstance(found, str) else found
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        return Link(
            nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        )
    except nvml.NVMLError as error:
        return f"NVML: {error}"
    finally:
        nvml.nvmlShutdown()


def _link_of_kernel(bus_id: str, root: Path) -> Link | str:
    folder = root / "bus/pci/devices" / bus_id.lower()
    try:
        speeds = [(folder / f"{which}_link_speed").read_text().split()[0] for which in ("current", "max")]
        widths = [int((folder / f"{which}_link_width").read_text()) for which in ("current", "max")]
        return Link(_GENERATIONS[speeds[0]], widths[0], _GENERATIONS[speeds[1]], widths[1])
    except (OSError, ValueError, KeyError, IndexError):
        return "nvidia-ml-py is not installed (pip install layercast[nvml]), and the kernel does not say"


def _about_link(ordinal: int, link: Link | str) -> Finding:
    what = f"GPU {ordinal} link"
    if isinstance(link, str):
        return Finding(what, f"unknown: {link}", "the bandwidth below is measured all the same", "note")
    facts = {**vars(link), "bytes_per_second": link.bytes_per_second}
    found = f"PCIe {link.generation} x{link.width} now, {link.most_generation} x{link.most_width} at most"
    if link.width < link.most_width:
        means = "fewer lanes than it could have: another slot, a riser or a bad contact halves every copy"
        return Finding(what, found, means, "problem", facts)
    means = f"about {link.bytes_per_second / 1e9:.0f} GB/s before headers; an idle link may show a lower generation"
    return Finding(what, found, means, facts=facts)


def _measure(cuda: Cuda, ordinal: int, bus_id: str, root: Path) -> Iterator[Finding]:
    nearest = numa.node_of_device(bus_id, root)
    nodes: list[int | None] = [*numa.nodes(root)]
    for node in nodes or [None]:
        what = f"GPU {ordinal} from node {node}" if node is not None else f"GPU {ordinal} from memory"
        try:
            speed, refused = measure_bandwidth(Cuda(ordinal, driver=cuda.library), node)
        except LayercastError as error:
            yield Finding(what, f"failed: {error.message}", "no layer will reach this device like this", "problem")
            continue
        means = "what every layer's copies are held against"
        if node is not None and nearest is not None:
            means += "; the node next to this GPU" if node == nearest else f"; slots lie on node {nearest} instead"
        facts = {"ordinal": ordinal, "node": node, "bytes_per_second": speed, "nearest": nearest}
        found = f"{speed / 1e9:.1f} GB/s, pinned host memory to device"
        if refused:
            found += f" (the memory could not be asked for on this node: {refused})"
        yield Finding(what, found, means, facts=facts)


def measure_bandwidth(cuda: Cuda, node: int | None = None, nbytes: int = _MEASURED_BYTES) -> tuple[float, str]:
    """Bytes per second from pinned memory on this node (None: anywhere) in pieces of 4 MiB, the best of three rounds.

    Also why the memory could not be asked for on the node, or nothing. Raises what the device raises.
    """
    memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    address = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    refused = "" if node is None else numa.prefer(address, nbytes, node)
    memory[:: mmap.PAGESIZE] = 1  # pages that nobody has touched are all the same one
    with contextlib.closing(cuda.open()) as device:
        there = device.allocate(nbytes)
        device.pin(address, nbytes)
        times = [_native.measure_copies(device, address, there, nbytes, _PIECE_BYTES, 1) for _ in range(_ROUNDS + 1)][
            1:
        ]
    return nbytes / (min(times) / 1e9), refused
