"""Our four names in kt-kernel's extension module, and a `run_layerwise_fp8_batch` that takes our transport.

What was there before is kept on the extension module itself, under `_KEPT`: nothing global here, and two copies of
kt-kernel do not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layercast.errors import ConfigError, GeometryError, StateError
from layercast.geometry import BLOCK
from layercast.kt import transport as ours
from layercast.kt.transport import FP8LayerwiseTransport

#: The versions of kt-kernel whose inside is known here.
KNOWN_VERSIONS = ("0.7.2",)
#: The engine's classes whose slots hold block-FP8; a build has those that its instructions allow.
_CLASSES = ("AMXFP8_MOE", "AVX2FP8_MOE")
_RUN = "run_layerwise_fp8_batch"
_KEPT = "__layercast_kept__"

_Run = Callable[[Any, Any, int, int, int], object]


@dataclass(frozen=True)
class _Change:
    """`owner.name` was `before` (or absent) and is `after`."""

    owner: Any
    name: str
    before: Any
    after: Any


class _Absent:
    """Stands for an attribute that was not there."""


def install(kt_kernel: Any) -> None:
    """Make a framework that is built on `kt_kernel` (the imported package) stream through this library.

    Puts the four names of `layercast.kt` into `kt_kernel.kt_kernel_ext`, and gives the engine's block-FP8 MoE
    objects, those that exist and those to come, a `run_layerwise_fp8_batch(transport, epoch, layer_id,
    expert_count)` that takes our transport; any other transport goes to the engine's own. Call it in every rank,
    before the framework is imported or makes its transports. Installing again changes nothing.

    Raises ConfigError for a version that this library does not know, naming both, and for a build without block-FP8.
    """
    version = getattr(kt_kernel, "__version__", None)
    if version not in KNOWN_VERSIONS:
        raise ConfigError(
            f"kt_kernel is version {version}, this library knows {', '.join(KNOWN_VERSIONS)}",
            hint="its inside may differ: install a known version, or use layercast.kt without kt_kernel",
        )
    extension = kt_kernel.kt_kernel_ext
    if _KEPT in vars(extension):
        return
    classes = [found for name in _CLASSES if (found := getattr(extension.moe, name, None)) is not None]
    if not classes:
        raise ConfigError(
            f"kt_kernel {version} was built without block-FP8: its extension has none of {', '.join(_CLASSES)}",
            hint=f"its variant here is {getattr(kt_kernel, '__cpu_variant__', 'unknown')}; AVX2 is the least it needs",
        )
    names = (
        "FP8_LAYERWISE_CONTROL_BYTES",
        "FP8_LAYERWISE_MAX_TP_SIZE",
        "FP8LayerwiseTransport",
        "initialize_fp8_layerwise_control",
    )
    changes = [_change(extension, name, getattr(ours, name)) for name in names]
    for found in classes:
        before = vars(found).get(_RUN, _Absent)
        changes.append(_change(found, _RUN, _runner(kt_kernel, before)))
    for change in changes:
        setattr(change.owner, change.name, change.after)
    setattr(extension, _KEPT, tuple(changes))


def uninstall(kt_kernel: Any) -> None:
    """Take `install` back: every name is again what it was. Close our transports first.

    Raises StateError where nothing is installed, or where somebody has changed a name since.
    """
    extension = kt_kernel.kt_kernel_ext
    changes: tuple[_Change, ...] | None = vars(extension).get(_KEPT)
    if changes is None:
        raise StateError("layercast.kt is not installed in this kt_kernel")
    for change in changes:
        if vars(change.owner).get(change.name) is not change.after:
            raise StateError(
                f"{change.owner.__name__}.{change.name} was changed by somebody else after install",
                hint="undo that first: to put back what was before would take it away",
            )
    for change in changes:
        if change.before is _Absent:
            delattr(change.owner, change.name)
        else:
            setattr(change.owner, change.name, change.before)
    delattr(extension, _KEPT)


def _change(owner: Any, name: str, after: Any) -> _Change:
    return _Change(owner, name, vars(owner).get(name, _Absent), after)


def _runner(kt_kernel: Any, before: Any) -> _Run:
    """The method for one class; `before` is the one it has had, which takes the engine's own transports."""

    def run_layerwise_fp8_batch(self: Any, transport: Any, epoch: int, layer_id: int, expert_count: int) -> object:
        if not isinstance(transport, FP8LayerwiseTransport):
            if before is _Absent:
                raise ConfigError(f"transport: expected an FP8LayerwiseTransport, got {type(transport).__name__}")
            return before.__get__(self)(transport, epoch, layer_id, expert_count)
        _check_grid(transport.expert_nbytes)
        queue = _queue(kt_kernel)

        def fill(expert: int, w13: list[int], w13_scale: list[int], w2: list[int], w2_scale: list[int]) -> None:
            queue.submit(self.write_weight_scale_to_buffer_task(len(w13), expert, w13, w13_scale, w2, w2_scale))
            queue.sync()

        transport.run_producer(epoch, layer_id, expert_count, fill)
        return None

    return run_layerwise_fp8_batch


def _queue(kt_kernel: Any) -> Any:
    """The one CPUInfer whose queue serialises all work of this process's engine."""
    wrapper = kt_kernel.experts.NativeMoEWrapper
    queue = wrapper._cpu_infer_instance
    if queue is None:
        raise StateError(
            "the engine has no CPUInfer yet, which its experts are filled through",
            hint="make its KTMoEWrapper(..., method='FP8') first",
        )
    return queue


def _check_grid(expert_nbytes: tuple[int, ...]) -> None:
    """The engine writes whole blocks, without a look at where a slot ends: slots off the grid are refused here."""
    weights = {"w13": expert_nbytes[0:2], "w2": expert_nbytes[2:4]}
    for name, (weight, scale) in weights.items():
        blocks = scale // 4
        if weight != blocks * BLOCK[0] * BLOCK[1] or scale % 4:
            raise GeometryError(
                f"{name} of an expert's slot takes {weight} bytes and its float32 scales {scale}, one scale per block "
                f"of {BLOCK[0]} x {BLOCK[1]} would cover {blocks * BLOCK[0] * BLOCK[1]}",
                hint="this T cuts inside a block: use one for which I / T is a multiple of 128",
            )
