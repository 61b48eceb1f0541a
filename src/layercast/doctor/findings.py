"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """`what` was looked at, what was `found`, and what that means for this library. `facts`: the same for machines.

    `state`: "ok"; "note", worth knowing; "problem", something will not work or be slow.
    """

    what: str
    found: str
    means: str
    state: Literal["ok", "note", "problem"] = "ok"
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def gib(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.1f} MiB"
