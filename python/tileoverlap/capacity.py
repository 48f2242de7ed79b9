"""The most that any routing can need (stage plan): there is no drop mode."""

from __future__ import annotations

from typing import NamedTuple

from tileoverlap import _core
from tileoverlap._args import INT64_MAX, as_instance, as_int
from tileoverlap.placement import Placement
from tileoverlap.plan import plan_options

__all__ = [
    "SizeReport",
    "max_bands",
    "max_padded_bands",
    "max_rows",
    "max_segments",
    "read_sizes",
    "size_report",
]


class SizeReport(NamedTuple):
    """Bytes that one rank's session needs, part by part, for any routing: there is no drop mode."""

    staging_bytes: int
    """Returned rows on the owner: max_tokens * top_k rows, whatever the world size."""
    output_bytes: int
    """The GEMM's output rows."""
    input_bytes: int
    """The GEMM's input rows (layers only: Session.run reads the caller's)."""
    projected_bytes: int
    """Rows between the two projections (layers that have two)."""
    flag_bytes: int
    counter_bytes: int
    """Arrival counters, credits and mailboxes."""
    total_bytes: int


def size_report(
    placement: Placement,
    rank: int,
    *,
    max_tokens: int,
    top_k: int,
    dtype: str,
    k: int,
    n: int,
    distinct: bool = False,
    tile: tuple[int, int] = (128, 128),
    layout: str = "compact",
) -> SizeReport:
    """Bytes that `rank`'s session needs.

    Args:
        placement: experts by rank.
        rank: whose session.
        max_tokens: most tokens on any one rank, >= 0.
        top_k: slots of a token.
        dtype: "float32", "bfloat16" or "float16".
        k, n: elements of a GEMM input row and of a returned row.
        distinct: True where a token never names an expert twice, which gives a tighter bound.
        tile, layout: as for make_plan.

    Returns:
        The parts; those that depend on the executor (projected, counters) are 0 here: the `sizes`
        of sessions and layers have them.

    Raises:
        InvalidArgument: sizes that are not positive or whose bytes pass 2^63.
    """
    core = _core.size_report(
        *_rank_of(placement, rank),
        _capacity(max_tokens, top_k, distinct),
        dtype,
        as_int("k", k, low=1, high=INT64_MAX),
        as_int("n", n, low=1, high=INT64_MAX),
        plan_options(tile, layout, 1, 1),
    )
    return read_sizes(core)


def max_bands(
    placement: Placement,
    rank: int,
    *,
    max_tokens: int,
    top_k: int,
    distinct: bool = False,
    tile: tuple[int, int] = (128, 128),
    layout: str = "compact",
) -> int:
    """Most bands that `rank`'s GEMM can have under any routing. Arguments as for size_report."""
    return _core.max_bands(
        *_rank_of(placement, rank),
        _capacity(max_tokens, top_k, distinct),
        plan_options(tile, layout, 1, 1),
    )


def max_rows(
    placement: Placement,
    rank: int,
    *,
    max_tokens: int,
    top_k: int,
    distinct: bool = False,
    tile: tuple[int, int] = (128, 128),
    layout: str = "compact",
) -> int:
    """Most rows that `rank`'s GEMM can have under any routing: max_bands * tile_m.

    Arguments as for size_report.
    """
    return _core.max_rows(
        *_rank_of(placement, rank),
        _capacity(max_tokens, top_k, distinct),
        plan_options(tile, layout, 1, 1),
    )


def max_segments(
    placement: Placement,
    rank: int,
    *,
    max_tokens: int,
    top_k: int,
    distinct: bool = False,
    tile: tuple[int, int] = (128, 128),
    layout: str = "compact",
) -> int:
    """Most segments that `rank`'s plan can have under any routing. Arguments as for size_report."""
    return _core.max_segments(
        *_rank_of(placement, rank),
        _capacity(max_tokens, top_k, distinct),
        plan_options(tile, layout, 1, 1),
    )


def max_padded_bands(
    experts: int,
    owner_count: int,
    *,
    max_tokens: int,
    top_k: int,
    tile_m: int = 128,
    distinct: bool = False,
) -> int:
    """Most bands that `owner_count` owners' runs can take in `experts` experts, each run padded to
    tile_m."""
    return _core.max_padded_bands(
        as_int("experts", experts),
        as_int("owner_count", owner_count),
        _capacity(max_tokens, top_k, distinct),
        as_int("tile_m", tile_m, low=1),
    )


def read_sizes(core: _core.SizeReport) -> SizeReport:
    """The C++ report as a Python tuple."""
    return SizeReport(*(getattr(core, field) for field in SizeReport._fields))


def _rank_of(placement: Placement, rank: int) -> tuple[_core.Placement, int]:
    core = as_instance("placement", placement, Placement)._core
    return core, as_int("rank", rank, high=placement.world - 1)


def _capacity(max_tokens: int, top_k: int, distinct: bool) -> _core.Capacity:
    return _core.Capacity(
        max_tokens=as_int("max_tokens", max_tokens, high=INT64_MAX),
        top_k=as_int("top_k", top_k, low=1),
        distinct=bool(distinct),
    )
