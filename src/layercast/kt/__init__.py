"""Drop-in module for frameworks that speak version 2 of the control block, and KTransformers' engine as a writer.

Such a framework probes a module for the first four names below. `install` puts them where a framework built on
kt-kernel looks for them; `engine_writer` makes a kt-kernel engine fill the slots of any group of this library.
"""

from layercast.kt.engine import engine_writer
from layercast.kt.installing import KNOWN_VERSIONS, install, uninstall
from layercast.kt.transport import (
    FP8_LAYERWISE_CONTROL_BYTES,
    FP8_LAYERWISE_MAX_TP_SIZE,
    FP8LayerwiseTransport,
    initialize_fp8_layerwise_control,
)

__all__ = [
    "FP8_LAYERWISE_CONTROL_BYTES",
    "FP8_LAYERWISE_MAX_TP_SIZE",
    "KNOWN_VERSIONS",
    "FP8LayerwiseTransport",
    "engine_writer",
    "initialize_fp8_layerwise_control",
    "install",
    "uninstall",
]
