"""What the steps find, and how it is shown."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 340.0
PIECE = 4 << 20
SHAPES = ("glm-5-next", "deepseek-v3", "qwen3-30b")


@dataclasses.dataclass
class Row:
    """One figure. `limit`: what it is held against; `target`: of the ratio, or of the figure without a limit.

    `value` None: it could not be taken, and `note` says why.
    """

    measure: str
    case: str
    value: float | None
    unit: str
    limit: float | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit if self.limit and self.value is not None else None

    def judged(self, at_least: float | None = None, below: float | None = None) -> Row:
        seen = self.ratio if self.limit else self.value
        self.target = f">= {at_least}" if at_least is not None else f"< {below}"
        if seen is not None:
            self.met = seen >= at_least if at_least is not None else seen < (below or 0)
        return self

    def line(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        verdict = "" if self.met is None else f"{self.target:<8} {'met' if self.met else 'MISSED'}"
        value = "-" if self.value is None else f"{self.value:.3f}"
        return f"{self.measure:<26}{self.case:<34}{value:>10} {self.unit:<14}{ratio:>7}  {verdict}{self.note}".rstrip()


@dataclasses.dataclass
class Check:
    """Settings, and what the steps find."""

    device: int
    driver: str
    mib: int
    rounds: int
    started: float = dataclasses.field(default_factory=time.monotonic)
    running: str = "build"  # the step
    rows: list[Row] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    bandwidth: float = 0.0  # bytes per second, pinned, pieces of 4 MiB
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # that each step took
    answers: dict[str, str] = dataclasses.field(default_factory=dict)  # what the figures of a step mean

    @property
    def left(self) -> float:
        return LIMIT_S - (time.monotonic() - self.started)

    @property
    def spec(self) -> str:
        return f"cuda:{self.device}"

    def environment(self) -> dict[str, str]:
        own = {"LAYERCAST_CUDA_DRIVER": self.driver} if self.driver else {"LAYERCAST_TEST_CUDA": "real"}
        return {**os.environ, **own}


class Skip(Exception):
    """A step that this machine has not what for; its text says what."""


def show(check: Check) -> None:
    print(f"{check.facts.get('device', 'no device')}; {platform.node()}, {datetime.date.today()}\n")
    print(f"{'measure':<26}{'case':<34}{'value':>10} {'unit':<14}{'ratio':>7}  {'target':<8}")
    for row in check.rows:
        print(row.line())
    for name, what in check.answers.items():
        print(f"{name}: {what}")
    for name, why in check.skipped.items():
        print(f"skipped {name}: {why}")
    for name, why in check.failed.items():
        print(f"FAILED {name}: {why}")
    steps = ", ".join(f"{name} {seconds:.0f}" for name, seconds in check.seconds.items())
    print(f"{time.monotonic() - check.started:.0f} s: {steps}")
