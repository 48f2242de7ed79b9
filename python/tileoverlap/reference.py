"""What the library must compute, in numpy and float64, and where rows must lie: written from the
definitions alone, for tests and for the command line. Slow and plain on purpose.

World-wide arguments are lists by rank. ``ids[r]`` is [T_r, k], -1 = no copy; ``weights[r]`` is
[T_r, k].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tileoverlap.bfloat16 import Bf16Array
from tileoverlap.errors import InvalidArgument
from tileoverlap.placement import Placement

__all__ = [
    "TOLERANCES",
    "Comparison",
    "LayoutReference",
    "Tolerance",
    "as_float64",
    "compare",
    "copy_rows",
    "expert_forward",
    "lay_out",
    "layer",
    "return_path",
]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def as_float64(values: npt.ArrayLike | Bf16Array) -> Float64:
    """The values of a float array or a Bf16Array in float64; exact."""
    return np.asarray(values.float32() if isinstance(values, Bf16Array) else values, np.float64)


# ---- the layer -----------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(z: Float64) -> Float64:
    result: Float64 = 0.5 * z * (1.0 + _erf(z / math.sqrt(2.0)))
    return result


def _silu(z: Float64) -> Float64:
    with np.errstate(over="ignore"):  # exp(-z) = inf gives the right limit, -0
        return z / (1.0 + np.exp(-z))


def expert_forward(kind: str, x: Float64, up: Float64 | None, down: Float64) -> Float64:
    """One expert's rows.

    Args:
        kind: "single": down x.
            "gelu": down gelu(up x), the exact GELU.
            "silu_gate": down (silu(g) * u) with (g, u) = up x, gate first.
        x: [rows, hidden], for "single" [rows, inner].
        up: [inner, hidden], for "silu_gate" [2 * inner, hidden], for "single" None.
        down: [hidden, inner].

    Returns:
        [rows, hidden].
    """
    between = x
    if kind == "gelu" and up is not None:
        between = _gelu(x @ up.T)
    elif kind == "silu_gate" and up is not None:
        gate, value = np.split(x @ up.T, 2, axis=1)
        between = _silu(gate) * value
    rows: Float64 = between @ down.T
    return rows


def layer(
    x: Sequence[Any],
    ids: Sequence[npt.NDArray[Any]],
    weights: Sequence[npt.NDArray[Any]],
    *,
    up: Any | None,
    down: Any,
    expert: str = "silu_gate",
) -> list[Float64]:
    """The whole layer, a sum over the slots i of token t that name an expert e = ids[t, i] != -1:

    out[t] = sum_i weights[t, i] * expert_e(x[t])

    Args:
        x: by rank, [T_r, width].
        up, down: of all experts, [experts, ...] as in expert_forward.

    Returns:
        By rank, float64 [T_r, hidden].
    """
    experts, hidden = down.shape[:2]
    rows = [as_float64(part) for part in x]
    out = [np.zeros((len(part), hidden), np.float64) for part in rows]
    for e in range(experts):
        up64 = None if up is None else as_float64(up[e])
        down64 = as_float64(down[e])
        for rank, part in enumerate(rows):
            tokens, slots = np.nonzero(ids[rank] == e)
            if len(tokens):
                scale = weights[rank][tokens, slots].astype(np.float64)[:, None]
                # add.at: a token may name the expert twice.
                np.add.at(
                    out[rank], tokens, scale * expert_forward(expert, part[tokens], up64, down64)
                )
    return out


def return_path(
    x: Sequence[Any],
    ids: Sequence[npt.NDArray[Any]],
    weights: Sequence[npt.NDArray[Any]],
    *,
    down: Any,
) -> list[Float64]:
    """What Session.run computes when its rows hold x[t] for each copy of token t.

    Args:
        x: by rank, [T_r, k].
        down: of all experts, [experts, n, k].

    Returns:
        By rank, float64 [T_r, n].
    """
    return layer(x, ids, weights, up=None, down=down, expert="single")


# ---- how close a result is -----------------------------------------------------------------------


class Tolerance(NamedTuple):
    """Limits of an output's error."""

    per_token: float
    """max |d| / max |y| of each token."""
    relative_l2: float
    """|d| / |y| over everything."""


TOLERANCES = {
    "float32": Tolerance(1e-5, 1e-5),
    "float16": Tolerance(8e-3, 1e-3),
    "bfloat16": Tolerance(6.4e-2, 8e-3),
}


class Comparison(NamedTuple):
    """Errors of an output against the float64 reference, and whether they are within the dtype's
    tolerance."""

    per_token: float
    relative_l2: float
    ok: bool


def compare(got: Sequence[Any], wanted: Sequence[Float64], dtype: str) -> Comparison:
    """Compares the outputs of all ranks, [T_r, hidden] each. A token whose reference is zero must
    be zero exactly; anything that is not finite is an infinite error."""
    if dtype not in TOLERANCES:
        raise InvalidArgument(f"dtype must be {', '.join(TOLERANCES)}, got {dtype!r}")
    y = np.concatenate([np.zeros((0, wanted[0].shape[1])), *wanted])
    d = np.abs(np.concatenate([np.zeros((0, y.shape[1])), *(as_float64(part) for part in got)]) - y)
    d[~np.isfinite(d)] = np.inf
    with np.errstate(divide="ignore", invalid="ignore"):
        by_token = d.max(axis=1, initial=0.0) / np.abs(y).max(axis=1, initial=0.0)
        l2 = np.sqrt((d * d).sum()) / np.sqrt((y * y).sum())
    by_token[np.isnan(by_token)] = 0.0  # 0 / 0
    per_token = float(by_token.max(initial=0.0))
    relative_l2 = 0.0 if np.isnan(l2) else float(l2)
    limit = TOLERANCES[dtype]
    return Comparison(
        per_token, relative_l2, per_token <= limit.per_token and relative_l2 <= limit.relative_l2
    )


# ---- where rows lie ------------------------------------------------------------------------------


class LayoutReference(NamedTuple):
    """The row layout of one rank, computed from the counts matrix."""

    row_begin: Int64
    """[experts on the rank, world] by position in the expert: first row of the run of
    owner[position]."""
    row_count: Int64
    """[experts on the rank, world]"""
    owner: Int64
    """[world]: rank + 1, rank + 2, ... (mod world), rank itself last."""
    remote_row: Int64
    """[experts on the rank, world] first row of the run in its owner's staging."""
    expert_row: Int64
    """[experts on the rank + 1] first row of each expert, and the rows of all."""
    staging_row: Int64
    """[experts + 1] first row of each expert's copies in this rank's own staging."""


def lay_out(
    placement: Placement, rank: int, counts: npt.NDArray[Any], *, tile_m: int, layout: str
) -> LayoutReference:
    """Lays out the rows of `rank`, counts being [world, experts].

    Experts start at multiples of tile_m. "compact": runs lie back to back; "owner_aligned": every
    run of another rank is filled up to a multiple of tile_m.
    """
    wide = np.asarray(counts, np.int64)
    world = placement.world
    owner = (rank + 1 + np.arange(world)) % world
    mine = wide[:, list(placement.experts_of(rank))][
        owner
    ].T  # [experts on the rank, world] by position
    heights = mine.copy()
    if layout == "owner_aligned":
        heights[:, :-1] = -(-heights[:, :-1] // tile_m) * tile_m
    inside = np.cumsum(heights, axis=1) - heights
    expert_heights = -(-heights.sum(axis=1) // tile_m) * tile_m
    expert_row = np.concatenate([[0], np.cumsum(expert_heights)]).astype(np.int64)
    staging = np.concatenate([np.zeros((world, 1), np.int64), np.cumsum(wide, axis=1)], axis=1)
    remote = staging[owner][:, list(placement.experts_of(rank))].T
    return LayoutReference(
        row_begin=expert_row[:-1, None] + inside,
        row_count=mine,
        owner=owner,
        remote_row=remote,
        expert_row=expert_row,
        staging_row=staging[rank],
    )


def copy_rows(
    placement: Placement,
    rank: int,
    counts: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    *,
    tile_m: int,
    layout: str,
) -> tuple[Int64, Int64, Int64]:
    """Where each copy of `rank`'s tokens goes: (peer, dispatch_row, gather_row), each [T, k], -1
    without a copy.

    gather_row counts the rank's staging rows first, then the rows of its own output.
    """
    layouts = [
        lay_out(placement, host, counts, tile_m=tile_m, layout=layout)
        for host in range(placement.world)
    ]
    peer, dispatch, gather = (np.full(ids.shape, -1, np.int64) for _ in range(3))
    staging_rows = int(layouts[rank].staging_row[-1])
    taken: dict[int, int] = {}
    for (token, slot), e in np.ndenumerate(np.asarray(ids, np.int64)):
        if e == -1:
            continue
        number = taken.get(int(e), 0)
        taken[int(e)] = number + 1
        host = placement.rank_of(int(e))
        position = int(np.flatnonzero(layouts[host].owner == rank)[0])
        row = int(layouts[host].row_begin[int(e) - placement.expert_begin[host], position]) + number
        peer[token, slot] = host
        dispatch[token, slot] = row
        staged = int(layouts[rank].staging_row[int(e)]) + number
        gather[token, slot] = staging_rows + row if host == rank else staged
    return peer, dispatch, gather
