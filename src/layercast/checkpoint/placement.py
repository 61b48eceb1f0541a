"""Which rank gets which bytes of which expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from layercast.errors import GeometryError

PlacementKind: TypeAlias = Literal["tensor", "expert"]


@dataclass(frozen=True)
class Placement:
    """Experts of a layer over ranks.

    `tensor`: every expert is cut over all ranks (tensor parallelism). `expert`: each rank owns whole experts
    (expert parallelism); `owners` says which rank owns expert x. A rank's device layer holds the experts of
    `experts_of(rank)`, in this order: position i is the i-th of them.
    """

    kind: PlacementKind
    experts: int
    ranks: int
    owners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("tensor", "expert"):
            raise GeometryError(f"placement is {self.kind!r}, expected 'tensor' or 'expert'")
        if self.experts < 1 or self.ranks < 1:
            raise GeometryError(f"placement of {self.experts} experts over {self.ranks} ranks: expected 1 or more")
        if self.kind == "tensor":
            if self.owners:
                raise GeometryError("placement 'tensor': every rank has a share of every expert, no owners are needed")
            return
        if not self.owners:
            # as even as can be, and expert after expert: the first ranks have one more
            owners = tuple(expert * self.ranks // self.experts for expert in range(self.experts))
            if self.experts >= self.ranks:
                small, more = divmod(self.experts, self.ranks)
                owners = tuple(rank for rank in range(self.ranks) for _ in range(small + (rank < more)))
            object.__setattr__(self, "owners", owners)
        if len(self.owners) != self.experts or not all(0 <= rank < self.ranks for rank in self.owners):
            raise GeometryError(
                f"placement 'expert': expected an owner of 0 to {self.ranks - 1} for each of {self.experts} experts, "
                f"got {len(self.owners)}: {self.owners[:8]}"
            )

    @property
    def parts(self) -> int:
        """How many ranks share one expert."""
        return self.ranks if self.kind == "tensor" else 1

    @property
    def positions(self) -> int:
        """The most experts that a rank holds."""
        return max(len(self.experts_of(rank)) for rank in range(self.ranks))

    def experts_of(self, rank: int) -> tuple[int, ...]:
        """The experts of which `rank` holds something, in the order of their positions on it."""
        if not 0 <= rank < self.ranks:
            raise GeometryError(f"rank {rank} does not exist", hint=f"ranks: 0 to {self.ranks - 1}")
        if self.kind == "tensor":
            return tuple(range(self.experts))
        return tuple(expert for expert, owner in enumerate(self.owners) if owner == rank)

    def part_of(self, rank: int) -> int:
        """Which of the `parts` of its experts `rank` holds."""
        return rank if self.kind == "tensor" else 0


def resolve(placement: PlacementKind | Placement, experts: int, ranks: int) -> Placement:
    """A placement by name, or one made before: it must be of this many experts and ranks."""
    if not isinstance(placement, Placement):
        return Placement(placement, experts, ranks)
    if (placement.experts, placement.ranks) != (experts, ranks):
        raise GeometryError(
            f"placement is of {placement.experts} experts over {placement.ranks} ranks, "
            f"the layer has {experts} and there are {ranks} ranks"
        )
    return placement
