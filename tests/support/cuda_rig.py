"""A rig whose destinations lie on CUDA devices: on the fake driver, or on a real one where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from layercast import _native
from tests.support.rig import Rig


@dataclass
class DeviceRegion:
    device: _native.Device
    address: int
    nbytes: int

    def fill(self, value: int) -> None:
        self.device.write(self.address, bytes([value]) * self.nbytes)

    def read(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(self.device.read(self.address, self.nbytes), np.uint8)


@dataclass
class CudaRig(Rig):
    """`device`: makes rank r's device from r."""

    device: Callable[[int], _native.Device] = None  # type: ignore[assignment]
    devices: list[_native.Device] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rank in range(self.tp):
            device = self.device(rank)
            self.devices.append(device)
            self.destinations[rank] = [  # type: ignore[call-overload]
                DeviceRegion(device, device.allocate(self.experts * k), self.experts * k) for k in self.kinds
            ]
            device.pin(self.slot_memory[rank].address, self.slots * self.slot_bytes)

    def open(self, rank: int, /, **overrides: object) -> _native.Transport:
        return super().open(rank, **{"device": self.devices[rank], **overrides})

    def make_device(self) -> _native.Device:
        return None  # type: ignore[return-value]

    def close(self) -> None:
        super().close()
        for rank, device in enumerate(self.devices):
            device.unpin(self.slot_memory[rank].address)
        self.transports.clear()
        self.devices.clear()
        self.destinations.clear()

    def spoil(self) -> None:
        for per_rank in self.destinations:
            for region in per_rank:
                region.fill(0xEE)  # type: ignore[attr-defined]

    def wrong(self, seed: int, layer: int, experts: int) -> list[int]:
        out = []
        for rank in range(self.tp):
            host = [region.read() for region in self.destinations[rank]]  # type: ignore[attr-defined]
            addresses = [array.ctypes.data for array in host]
            wrong, _ = _native.count_wrong_pattern(seed, layer, rank, experts, list(self.kinds), addresses)
            out.append(wrong)
        return out
