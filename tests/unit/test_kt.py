"""install, uninstall and engine_writer on a stand-in of kt-kernel (`make test-kt` has the real one); the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support import engine
from tests.support.framework import Client, Ranks
from tests.support.rig import Rig

from layercast import _native, errors, kt
from layercast.geometry import fp8_block_layout

NAMES = (
    "FP8_LAYERWISE_CONTROL_BYTES",
    "FP8_LAYERWISE_MAX_TP_SIZE",
    "FP8LayerwiseTransport",
    "initialize_fp8_layerwise_control",
)
HIDDEN, INNER, EXPERTS = 256, 512, 3


def everything(package: Any) -> dict[str, object]:
    """All that could be changed: the extension's names, and those of the engine's classes."""
    extension = package.kt_kernel_ext
    classes = {name: dict(vars(found)) for name, found in vars(extension.moe).items() if isinstance(found, type)}
    return {**vars(extension), "moe": classes}


def test_install_and_uninstall_leave_what_was_there() -> None:
    package = engine.package()
    before = everything(package)
    kt.install(package)
    extension = package.kt_kernel_ext
    assert all(getattr(extension, name) is getattr(kt, name) for name in NAMES)
    installed = everything(package)
    kt.install(package)
    assert everything(package) == installed
    kt.uninstall(package)
    assert everything(package) == before
    assert not hasattr(extension, "FP8_LAYERWISE_MAX_TP_SIZE")  # one that was not there
    with pytest.raises(errors.StateError, match="not installed"):
        kt.uninstall(package)
    kt.install(package)
    assert extension.FP8LayerwiseTransport is kt.FP8LayerwiseTransport


@pytest.mark.parametrize("version", ["0.7.1", "0.7.20", "1.0", None])
def test_another_version_is_refused_with_both_named(version: str | None) -> None:
    package = engine.package(version)
    before = everything(package)
    with pytest.raises(errors.ConfigError, match=rf"kt_kernel is version {version}, this library knows 0\.7\.2"):
        kt.install(package)
    assert everything(package) == before


def test_a_build_without_block_fp8_is_refused() -> None:
    package = engine.package(classes=("AMXBF16_MOE",))
    with pytest.raises(errors.ConfigError, match="built without block-FP8: its extension has none of AMXFP8_MOE"):
        kt.install(package)


def test_other_classes_of_the_engine_stay_as_they_are() -> None:
    package = engine.package(classes=("AVX2FP8_MOE", "AMXBF16_MOE"))
    other = dict(vars(package.kt_kernel_ext.moe.AMXBF16_MOE))
    kt.install(package)
    assert dict(vars(package.kt_kernel_ext.moe.AMXBF16_MOE)) == other


def test_uninstall_takes_nothing_of_others_away() -> None:
    package = engine.package()
    kt.install(package)
    package.kt_kernel_ext.FP8LayerwiseTransport = object
    with pytest.raises(errors.StateError, match="kt_kernel_ext.FP8LayerwiseTransport was changed by somebody else"):
        kt.uninstall(package)
    assert package.kt_kernel_ext.FP8_LAYERWISE_MAX_TP_SIZE == 8


def test_the_engines_own_transport_goes_to_the_engine() -> None:
    package = engine.package()
    own = package.kt_kernel_ext.FP8LayerwiseTransport()
    wrapper = package.experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    kt.install(package)
    assert wrapper.run_layerwise_fp8_batch(own, 1, 2, 3) == ("the engine's own", own, 1, 2, 3)


def test_a_framework_on_the_engine_runs_unchanged() -> None:
    package = engine.package()
    wrappers = [package.experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS, seed) for seed in range(2)]
    kt.install(package)
    sizes = fp8_block_layout(HIDDEN, INNER, 1).sizes

    def produce(transport: Any, epoch: int, layer: int, experts: int) -> None:
        assert wrappers[layer].run_layerwise_fp8_batch(transport, epoch, layer, experts) is None

    client = Client(package.kt_kernel_ext, Ranks(1), 0, EXPERTS, sizes, produce)
    seen = []

    def use(layer: int, tensors: list[np.ndarray]) -> None:
        shares = [tensor.reshape(EXPERTS, -1) for tensor in tensors]
        assert np.array_equal(np.concatenate(shares, axis=1), wrappers[layer].bytes[:, 0])
        seen.append(layer)

    client.round([0, 1], 2, use)
    client.end()
    assert seen == [0, 1, 0, 1]
    assert wrappers[0].cpu_infer.done == 4 * EXPERTS


def test_no_engine_no_queue() -> None:
    package = engine.package()
    sizes = fp8_block_layout(HIDDEN, INNER, 1).sizes
    wrapper = package.experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    package.experts.NativeMoEWrapper._cpu_infer_instance = None
    kt.install(package)
    client = Client(package.kt_kernel_ext, Ranks(1), 0, EXPERTS, sizes, wrapper.run_layerwise_fp8_batch)
    client.transport.join(1, 0, EXPERTS)
    with pytest.raises(errors.StateError, match="the engine has no CPUInfer yet"):
        wrapper.moe.run_layerwise_fp8_batch(client.transport, 1, 0, EXPERTS)
    client.end()


def test_slots_off_the_block_grid_never_reach_the_engine() -> None:
    """I / T = 192: the real engine would write whole blocks, past the slots' ends."""
    package = engine.package()
    wrapper = package.experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    kt.install(package)
    client = Client(package.kt_kernel_ext, Ranks(1), 0, EXPERTS, (2 * 192 * 256, 32, 256 * 192, 16), None)
    client.transport.join(1, 0, EXPERTS)
    with pytest.raises(errors.GeometryError, match="one scale per block of 128 x 128 would cover 131072"):
        wrapper.moe.run_layerwise_fp8_batch(client.transport, 1, 0, EXPERTS)
    assert wrapper.cpu_infer.done == 0
    client.end()


@pytest.mark.parametrize(("tp", "version"), [(1, 2), (2, 3), (4, 2)])
def test_engine_writer_fills_any_group_of_this_library(tp: int, version: int) -> None:
    wrapper = engine.package().experts.NativeMoEWrapper(HIDDEN, INNER, tp, EXPERTS)
    sizes = fp8_block_layout(HIDDEN, INNER, tp).sizes
    with Rig(tp, sizes, EXPERTS, version=version) as rig:
        rig.load_checked(1, 0, EXPERTS, kt.engine_writer(wrapper))
        for rank, destinations in enumerate(rig.destinations):
            shares = [d.array[: EXPERTS * s].reshape(EXPERTS, s) for d, s in zip(destinations, sizes, strict=True)]
            assert np.array_equal(np.concatenate(shares, axis=1), wrapper.bytes[:, rank])


def test_engine_writer_refuses_what_is_no_loaded_block_fp8_engine() -> None:
    with pytest.raises(errors.ConfigError, match="object has no submit_write_weight_scale_to_buffer"):
        kt.engine_writer(object())  # type: ignore[arg-type]
    wrapper = engine.package().experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    wrapper.method = "BF16"
    with pytest.raises(errors.ConfigError, match="its method is 'BF16', expected 'FP8'"):
        kt.engine_writer(wrapper)
    wrapper.method, wrapper.moe = "FP8", None
    with pytest.raises(errors.StateError, match="loaded no layer"):
        kt.engine_writer(wrapper)


RIGHT = fp8_block_layout(HIDDEN, INNER, 1).sizes


@pytest.mark.parametrize(
    ("tp", "kinds", "experts", "words"),
    [
        (1, (64, 8), 1, "slot of rank 0: its kinds have (64, 8) bytes, this engine's experts take"),
        (1, (*RIGHT[:3], 64), 1, f"take {RIGHT} (H = 256, I = 512, T = 1)"),
        (8, (32768, 16, 16384, 16), 1, "T = 8"),
        (1, RIGHT, EXPERTS + 1, "expert 3: the engine has experts 0 to 2"),
    ],
)
def test_engine_writer_looks_before_the_engine_writes(
    tp: int, kinds: tuple[int, ...], experts: int, words: str
) -> None:
    wrapper = engine.package().experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    with Rig(tp, kinds, experts) as rig:
        found = rig.load(1, 0, experts, kt.engine_writer(wrapper))
    assert all(isinstance(error, errors.WriterError) and words in str(error) for error in found), found
    assert wrapper.cpu_infer.done == min(experts - 1, EXPERTS)


def test_a_writer_of_the_engine_is_a_writer() -> None:
    wrapper = engine.package().experts.NativeMoEWrapper(HIDDEN, INNER, 1, EXPERTS)
    assert isinstance(kt.engine_writer(wrapper), _native.Writer)


@pytest.mark.parametrize("cuda_device", [-2, -10])
def test_a_device_that_cannot_be(cuda_device: int) -> None:
    with pytest.raises(errors.ConfigError, match=f"cuda_device: expected 0 or more, or -1 .* got {cuda_device}"):
        kt.FP8LayerwiseTransport(64, 8192, 0, 1, cuda_device, [64] * 8, [64] * 4, [64] * 8, [1] * 4, 1)
