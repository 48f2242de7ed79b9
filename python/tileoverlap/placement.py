"""Which rank hosts which expert (stage routing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileoverlap import _core
from tileoverlap._args import as_int

__all__ = ["Placement"]


class Placement:
    """Experts by rank: rank r hosts the ids ``expert_begin[r] .. expert_begin[r + 1] - 1``.

    Ids are physical experts: a replica made by a load balancer is one more expert. Ranks may host
    different numbers of experts, also none. Immutable, hashable, shareable.
    """

    def __init__(self, expert_begin: Sequence[int]) -> None:
        """Makes a placement from world + 1 offsets that start at 0 and never decrease
        (InvalidArgument)."""
        begins = [as_int(f"expert_begin[{i}]", begin) for i, begin in enumerate(expert_begin)]
        self._core = _core.Placement.from_begins(begins)
        self._begin = tuple(begins)

    @classmethod
    def even(cls, *, world: int, experts: int) -> Placement:
        """Spreads `experts` over `world` ranks; where they do not divide, the first ranks host one
        more.

        Raises InvalidArgument unless world >= 1 and experts >= 0.
        """
        made = cls.__new__(cls)
        made._core = _core.Placement.even(as_int("world", world, low=1), as_int("experts", experts))
        made._begin = tuple(made._core.expert_begin)
        return made

    @property
    def world(self) -> int:
        return len(self._begin) - 1

    @property
    def experts(self) -> int:
        """Experts of all ranks."""
        return self._begin[-1]

    @property
    def expert_begin(self) -> tuple[int, ...]:
        return self._begin

    def experts_of(self, rank: int) -> range:
        """The ids that `rank` hosts."""
        checked = as_int("rank", rank, high=self.world - 1)
        return range(self._begin[checked], self._begin[checked + 1])

    def experts_on(self, rank: int) -> int:
        """How many experts `rank` hosts."""
        return len(self.experts_of(rank))

    def rank_of(self, expert: int) -> int:
        """The rank that hosts `expert`."""
        return self._core.rank_of(as_int("expert", expert))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Placement) and self._begin == other._begin

    def __hash__(self) -> int:
        return hash(self._begin)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._begin,)

    def __repr__(self) -> str:
        return repr(self._core)
