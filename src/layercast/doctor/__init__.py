"""What this machine offers and forbids, and what each of that means here: `layercast doctor`."""

from __future__ import annotations

from layercast.doctor.findings import Finding
from layercast.doctor.gpus import examine_gpus
from layercast.doctor.host import examine_host

__all__ = ["Finding", "examine", "examine_gpus", "examine_host"]


def examine(*, measure: bool = True) -> list[Finding]:
    """Everything, the devices first. `measure`: also copy to each device from each NUMA node, a second or so each."""
    return [*examine_gpus(measure=measure), *examine_host()]
