"""One rank's plan for one call (stage plan): rows, tile order, segments, expected arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tileoverlap import _core
from tileoverlap._args import as_choice, as_instance, as_int, as_tile
from tileoverlap._dlpack import TensorLike, as_tensor
from tileoverlap.counts import RouteCounts
from tileoverlap.errors import InvalidArgument
from tileoverlap.placement import Placement

__all__ = [
    "LAYOUTS",
    "CopyIndex",
    "Plan",
    "check_plan",
    "check_plans",
    "make_plan",
    "tile_arrays",
]

LAYOUTS = ("compact", "owner_aligned")

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(layout) for name, layout in _core.struct_layouts.items()
}


class Plan:
    """How `rank` lays out, computes and returns the rows of one call. Immutable and shareable.

    The arrays are read-only views of the C++ plan, without a copy; the field names are those of
    tileoverlap/plan/plan.hpp. Rows count from 0 in the rank's row buffers; band b is the rows
    ``[b * tile_m, (b + 1) * tile_m)``.
    """

    def __init__(self, core: _core.Plan, placement: Placement) -> None:
        self._core = core
        self.placement = placement

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def world(self) -> int:
        return self._core.world

    @property
    def n(self) -> int:
        """Elements of a returned row."""
        return self._core.n

    @property
    def tile(self) -> tuple[int, int]:
        """(tile_m, tile_n)."""
        return self._core.options.tile_m, self._core.options.tile_n

    @property
    def layout(self) -> str:
        return self._core.options.layout

    @property
    def bands_per_segment(self) -> int:
        return self._core.options.bands_per_segment

    @property
    def group(self) -> int:
        """Most bands whose tiles are interleaved."""
        return self._core.options.group

    @property
    def rows(self) -> int:
        """Rows that the GEMM's buffers need: bands * tile_m."""
        return self._core.rows

    @property
    def gemm_rows(self) -> int:
        """Rows of GEMM work: copies, and the padding of the owner_aligned layout."""
        return self._core.gemm_rows

    @property
    def valid_rows(self) -> int:
        """Copies that this rank's experts compute."""
        return self._core.valid_rows

    @property
    def staging_rows(self) -> int:
        """Copies of this rank's own tokens."""
        return self._core.staging_rows

    @property
    def bands(self) -> int:
        return self._core.bands

    @property
    def fingerprint(self) -> int:
        """Equal on ranks whose plans belong together: same counts, placement, n, tile, layout."""
        return self._core.fingerprint

    @property
    def tiles(self) -> int:
        """bands * tiles_n."""
        return self._core.tiles

    @property
    def tiles_n(self) -> int:
        """Column tiles of a band."""
        return self._core.tiles_n

    @property
    def experts(self) -> npt.NDArray[Any]:
        """One entry an expert of this rank: expert, first_band, bands, remote_bands, row_begin,
        rows, valid_rows."""
        return self._core.experts().view(_DTYPES["experts"])

    @property
    def runs(self) -> npt.NDArray[Any]:
        """[experts of this rank, world] in row order: expert, owner, row_begin, row_count,
        remote_row.

        A run is the copies of one owner inside one expert; remote_row lies in the owner's staging.
        """
        return self._core.runs().view(_DTYPES["runs"]).reshape(-1, self.world)

    @property
    def order(self) -> npt.NDArray[Any]:
        """Every band once, in schedule order: band, expert, group_begin, group_size."""
        return self._core.order().view(_DTYPES["order"])

    @property
    def segments(self) -> npt.NDArray[Any]:
        """What is sent in one go, in schedule order: first_band, last_band, peer, expert,
        row_begin, row_count, remote_row."""
        return self._core.segments().view(_DTYPES["segments"])

    @property
    def dispatched_rows(self) -> npt.NDArray[np.int64]:
        """[world] copies that each owner sends to this rank's experts."""
        return self._core.dispatched_rows()

    @property
    def staging_row(self) -> npt.NDArray[np.int64]:
        """[experts + 1] first staging row of each expert's copies of this rank's tokens."""
        return self._core.staging_row()

    @property
    def dispatch_row(self) -> npt.NDArray[np.int64]:
        """[experts] first row of this rank's run on the rank that hosts the expert."""
        return self._core.dispatch_row()

    @property
    def returned_rows(self) -> npt.NDArray[np.int64]:
        """[world] rows that each other rank returns to this one; 0 for this rank."""
        return self._core.returned_rows()

    @property
    def copies_of(self) -> npt.NDArray[np.int64]:
        """[world] copies of each owner."""
        return self._core.copies_of()

    def tile_at(self, task: int) -> tuple[int, int, int]:
        """(band, column tile, expert) of the schedule's tile number `task`, 0 .. tiles-1."""
        if self.tiles == 0:
            raise InvalidArgument(f"the plan has no tiles, got task {task!r}")
        return self._core.tile_at(as_int("task", task, high=self.tiles - 1))

    def copy_index(self, topk_ids: TensorLike) -> CopyIndex:
        """Where each copy of this rank's tokens goes, and where its result is found.

        Args:
            topk_ids: [T, k] int32 or int64, the ids from which this plan's counts were taken.

        Raises:
            InvalidArgument: the ids do not give the plan's counts.
        """
        core = _core.make_copy_index(self._core, as_tensor(topk_ids, "topk_ids"))
        shape = (core.tokens, core.top_k)
        return CopyIndex(
            core.peer().reshape(shape),
            core.dispatch_row().reshape(shape),
            core.gather_row().reshape(shape),
        )

    def __repr__(self) -> str:
        return repr(self._core)


class CopyIndex(NamedTuple):
    """By (token, slot), arrays [T, k]; -1 for a slot without a copy.

    Copies of one expert are numbered by (token, slot), which the owner knows without asking
    anybody.
    """

    peer: npt.NDArray[np.int32]
    """The rank that hosts the copy's expert."""
    dispatch_row: npt.NDArray[np.int64]
    """The copy's row on that rank."""
    gather_row: npt.NDArray[np.int64]
    """The result's row: below staging_rows in this rank's staging, else staging_rows + row of its
    own output."""


def plan_options(tile: Any, layout: str, bands_per_segment: int, group: int) -> _core.PlanOptions:
    """The options that shape a plan, checked."""
    tile_m, tile_n = as_tile(tile)
    return _core.PlanOptions(
        tile_m=tile_m,
        tile_n=tile_n,
        layout=as_choice("layout", layout, LAYOUTS),
        bands_per_segment=as_int("bands_per_segment", bands_per_segment, low=1),
        group=as_int("group", group, low=1),
    )


def make_plan(
    placement: Placement,
    rank: int,
    counts: RouteCounts,
    *,
    n: int,
    tile: tuple[int, int] = (128, 128),
    layout: str = "compact",
    bands_per_segment: int = 1,
    group: int = 8,
) -> Plan:
    """Plans the return path of `rank`: pure arithmetic on counts, no clock and no communication.

    Args:
        placement: experts by rank.
        rank: whose plan.
        counts: the matrix of the placement's world and experts, the same on all ranks.
        n: elements of a returned row (hidden size).
        tile: (tile_m, tile_n), rows and columns of an output tile; n and the counts need not
            divide.
        layout: "compact" (runs lie back to back) or "owner_aligned" (every remote run starts at a
            multiple of
            tile_m: the paper's Algorithm 1).
        bands_per_segment: bands sent in one go (the paper's mgb).
        group: most bands of one expert whose tiles are interleaved.

    Raises:
        InvalidArgument: sizes that are not positive, a rank outside the world, counts of another
            shape.
    """
    as_instance("placement", placement, Placement)
    as_instance("counts", counts, RouteCounts)
    options = plan_options(tile, layout, bands_per_segment, group)
    checked_rank = as_int("rank", rank, high=placement.world - 1)
    core = _core.make_plan(
        placement._core, checked_rank, counts._core, as_int("n", n, low=1), options
    )
    return Plan(core, placement)


def check_plan(plan: Plan, counts: RouteCounts) -> list[str]:
    """What is wrong with one rank's plan for these counts; empty when all invariants hold. Costs
    O(rows)."""
    return _core.check_plan(
        as_instance("plan", plan, Plan)._core, as_instance("counts", counts, RouteCounts)._core
    )


def check_plans(plans: Sequence[Plan], counts: RouteCounts) -> list[str]:
    """What is wrong with the plans of all ranks together, each checked by itself too; empty when
    they hold."""
    cores = [as_instance(f"plans[{rank}]", plan, Plan)._core for rank, plan in enumerate(plans)]
    return _core.check_plans(cores, as_instance("counts", counts, RouteCounts)._core)


def tile_arrays(plan: Plan) -> dict[str, npt.NDArray[Any]]:
    """The plan in the paper's terms, for printing, export and comparison.

    Returns columns of equal length, one entry for each (tile, destination) in schedule order:
        tile: int64, band * tiles_n + column tile.
        expert: int32.
        dest_rank: int32, the rows' owner; this rank for rows that are not sent.
        row_begin: int64, first valid row in this rank's output.
        valid_rows: int64, rows of the tile that belong to dest_rank.
        remote_offset: int64, elements into dest_rank's staging; -1 for rows that are not sent.
    """
    return _core.tile_arrays(as_instance("plan", plan, Plan)._core)
