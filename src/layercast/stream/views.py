"""A loaded layer as typed tensors over device memory, without copies, valid while the model holds the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from layercast import _native
from layercast.errors import ConfigError, StateError
from layercast.geometry import ExpertLayout, Kind
from layercast.observe import LayerStatistics

#: torch's names to DLPack's type code and bits; https://dmlc.github.io/dlpack/latest/c_api.html, version 1.1.
_DLPACK: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "uint8": (1, 8),
        "float16": (2, 16),
        "float32": (2, 32),
        "bfloat16": (4, 16),
        "float8_e4m3fn": (10, 8),
        "float8_e8m0fnu": (14, 8),
    }
)
#: numpy has no 8-bit floats and no bfloat16: it gets their bytes.
_NUMPY: Mapping[str, str] = MappingProxyType(
    {"uint8": "|u1", "float16": "<f2", "float32": "<f4", "bfloat16": "<u2"}
    | dict.fromkeys(("float8_e4m3fn", "float8_e8m0fnu"), "|u1")
)
_CPU = 1  # DLPack's device type


class Lease:
    """How long views are valid. Released once, by whoever gave them out."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.released = False
        self._calls: list[Callable[[], object]] = []

    def check(self) -> None:
        """StateError after the release."""
        if self.released:
            raise StateError(
                f"{self.what} has been released; its memory belongs to another layer now",
                hint="use its tensors inside the with block only",
            )

    def on_release(self, call: Callable[[], object]) -> None:
        """What else becomes invalid then."""
        self._calls.append(call)

    def release(self) -> None:
        """Idempotent."""
        self.released = True
        while self._calls:
            self._calls.pop()()


class View:
    """One kind of all experts of a layer on this rank's device: shape [experts, *kind.shape], contiguous.

    Speaks DLPack (`torch.from_dlpack(view)` keeps 8-bit float dtypes) and, on the host, `__array_interface__`
    (`numpy.asarray(view)`; 8-bit floats as uint8, bfloat16 as uint16) or, on CUDA, `__cuda_array_interface__`. None of
    them copies. StateError after release; arrays that were made before cannot know, so make them inside the block.

    Attributes: `name`, `shape`, `dtype` (torch's name), `block` (rows and columns that share a scale, of kinds of
    scales), `nbytes`, `address`.
    """

    def __init__(self, kind: Kind, experts: int, address: int, lease: Lease, device: _native.Device) -> None:
        self.name, self.dtype, self.block = kind.name, kind.dtype, kind.block
        self.shape = (experts, *kind.shape)
        self.nbytes = math.prod(self.shape) * kind.itemsize
        self._address, self._lease, self._device = address, lease, device

    @property
    def address(self) -> int:
        """Where it lies on the device."""
        self._lease.check()
        return self._address

    def __repr__(self) -> str:
        state = ", released" if self._lease.released else ""
        return f"View({self.name}, {list(self.shape)} {self.dtype}{state})"

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number: (1, 0) for host memory, (2, n) for GPU n."""
        return self._device.dlpack_device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule over the device's memory. The bytes are complete: no stream needs to wait for them."""
        self._lease.check()
        where = self.__dlpack_device__()
        if copy or dl_device not in (None, where):
            raise BufferError(f"view {self.name}: lies on {where} and is not copied")
        code, bits = _DLPACK[self.dtype]
        return _native.dlpack_view(self._address, list(self.shape), code, bits, *where, self._device)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.__dlpack_device__()[0] != _CPU:
            raise AttributeError(f"view {self.name} lies on {self._device.describe()}, not in host memory")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.__dlpack_device__()[0] == _CPU:
            raise AttributeError(f"view {self.name} lies in host memory")
        return self._interface()

    def _interface(self) -> dict[str, Any]:
        self._lease.check()
        return {"shape": self.shape, "typestr": _NUMPY[self.dtype], "data": (self._address, False), "version": 3}

    def numpy(self) -> npt.NDArray[Any]:
        """The same memory as a numpy array (host devices)."""
        return np.asarray(self)

    def on_release(self, call: Callable[[], object]) -> None:
        """Have `call` called when the view ends, to end what was made of it."""
        self._lease.check()
        self._lease.on_release(call)


class LayerWeights(Mapping[str, View]):
    """A layer's experts on this rank: views by the names of their kinds, as items and as attributes.

    `layer`; `experts`: ids of those that were asked for (None: all); `placed`: where ranks own whole experts, those of
    this rank in the order of their places (None: each is in its own place); `num_experts`: the first axis of every
    view; `layout`: what an expert is; `waited_s`: how long the model waited; `statistics` of the load (None where none
    was needed). Attributes of kinds that the format does not have are None.
    """

    def __init__(
        self,
        layer: int,
        layout: ExpertLayout,
        num_experts: int,
        experts: tuple[int, ...] | None,
        addresses: Sequence[int],
        device: _native.Device,
    ) -> None:
        if len(addresses) != len(layout.kinds):
            raise ConfigError(f"addresses: expected one per kind ({len(layout.kinds)}), got {len(addresses)}")
        self.layer, self.layout, self.num_experts, self.experts = layer, layout, num_experts, experts
        self.placed: tuple[int, ...] | None = None
        self.waited_s = 0.0
        self.statistics: LayerStatistics | None = None
        self._lease = Lease(f"layer {layer}")
        self._views = {
            kind.name: View(kind, num_experts, address, self._lease, device)
            for kind, address in zip(layout.kinds, addresses, strict=True)
        }

    def __getitem__(self, name: str) -> View:
        """The view of the kind called `name`."""
        self._lease.check()
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    # Each use of a layer is its own, whatever the bytes.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __len__(self) -> int:
        return len(self._views)

    def _kind(self, name: str) -> View | None:
        self._lease.check()
        return self._views.get(name)

    @property
    def w13(self) -> View:
        """Gate's rows, then up's: [experts, 2 Ir, H / weights per element]."""
        return self["w13"]

    @property
    def w2(self) -> View:
        """Columns of down: [experts, H, Ir / weights per element]."""
        return self["w2"]

    @property
    def w13_scale(self) -> View | None:
        """Scales of w13, each for `block` of it."""
        return self._kind("w13_scale")

    @property
    def w2_scale(self) -> View | None:
        """Scales of w2, each for `block` of it."""
        return self._kind("w2_scale")

    @property
    def w13_bias(self) -> View | None:
        """[experts, 2 Ir]."""
        return self._kind("w13_bias")

    @property
    def w2_bias(self) -> View | None:
        """[experts, H]; whole on every rank, to be added once."""
        return self._kind("w2_bias")

    @property
    def released(self) -> bool:
        """Whether the with block is over."""
        return self._lease.released

    def release(self) -> None:
        """End all views."""
        self._lease.release()
