"""What the environment says. No other file reads environment variables."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from layercast.errors import ConfigError

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Membership:
    """Which place of which group a process takes."""

    name: str
    rank: int
    tp: int


@dataclass(frozen=True)
class Environment:
    """A snapshot of the environment variables, read once. `read()` takes them from this process."""

    variables: Mapping[str, str]

    @classmethod
    def read(cls) -> Environment:
        return cls(dict(os.environ))

    def _get(self, name: str) -> str | None:
        """The variable's value; an empty one counts as unset."""
        return self.variables.get(name) or None

    @property
    def runtime_dir(self) -> Path:
        """Where groups leave their sockets.

        $LAYERCAST_RUNTIME_DIR, else $XDG_RUNTIME_DIR/layercast, else /tmp/layercast-UID.
        """
        for name, below in (("LAYERCAST_RUNTIME_DIR", ""), ("XDG_RUNTIME_DIR", "layercast")):
            if value := self._get(name):
                if not Path(value).is_absolute():
                    raise ConfigError(f"{name} is {value!r}, an absolute path is needed")
                return Path(value) / below
        return Path("/tmp") / f"layercast-{os.geteuid()}"

    @property
    def cuda_driver(self) -> str:
        """$LAYERCAST_CUDA_DRIVER: the library of the CUDA driver, a path; empty: the usual libcuda.so.1."""
        value = self._get("LAYERCAST_CUDA_DRIVER") or ""
        if value and not Path(value).is_file():
            raise ConfigError(f"LAYERCAST_CUDA_DRIVER is {value!r}, the path of a library is needed")
        return value

    def torchrun(self) -> Membership:
        """The group of this machine's processes under torchrun, or a launcher that sets the same variables.

        A group is one machine, so LOCAL_RANK and LOCAL_WORLD_SIZE are its rank and size. Its name follows
        from the run, its restart count and the machine's first global rank: equal on all its processes, new
        on a restart.
        ConfigError when a variable is missing or disagrees with another; it names variables and values.
        """
        if missing := [name for name in _NEEDED if self._get(name) is None]:
            raise ConfigError(
                f"not set: {', '.join(missing)}",
                hint="start with torchrun, or give name, rank and tp to Group",
            )
        rank, world = self._number("RANK"), self._number("WORLD_SIZE")
        local, tp = self._number("LOCAL_RANK"), self._number("LOCAL_WORLD_SIZE")
        self._number("MASTER_PORT")
        restarts = self._number("TORCHELASTIC_RESTART_COUNT", default="0")
        first = rank - local
        self._order(local < tp, "LOCAL_RANK", "<", "LOCAL_WORLD_SIZE")
        self._order(rank < world, "RANK", "<", "WORLD_SIZE")
        self._order(tp <= world, "LOCAL_WORLD_SIZE", "<=", "WORLD_SIZE")
        self._order(local <= rank, "LOCAL_RANK", "<=", "RANK")
        if first + tp > world:
            raise ConfigError(
                f"RANK={rank} and LOCAL_RANK={local} put this machine's ranks at {first} to {first + tp - 1}"
                f" (LOCAL_WORLD_SIZE={tp}), beyond WORLD_SIZE={world}"
            )
        run = self._get("TORCHELASTIC_RUN_ID") or "none"
        whole = "\n".join(
            (run, self.variables["MASTER_ADDR"], self.variables["MASTER_PORT"], str(restarts), str(first))
        )
        digest = hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:12]
        return Membership(f"torchrun-{_NOT_IN_NAMES.sub('_', run)[:32]}-{digest}", local, tp)

    def _number(self, name: str, default: str | None = None) -> int:
        value = self._get(name) or default or ""
        if not (value.isascii() and value.isdigit()):
            raise ConfigError(f"{name} is {value!r}, a number from 0 on is needed")
        return int(value)

    def _order(self, holds: bool, small: str, relation: str, large: str) -> None:
        if not holds:
            raise ConfigError(
                f"{small}={self.variables[small]} and {large}={self.variables[large]}:"
                f" {small} {relation} {large} is needed"
            )
