"""Plans as text."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap.cli._output import size_text
from tileoverlap.plan import Plan

__all__ = ["arrays", "layout", "ratio_table", "schedule", "segments"]

_CELLS = 8  # characters of a band
_BANDS_A_LINE = 8
_OWNERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_PADDING = "."


def ratio_table(ratios: dict[str, dict[str, Any]], chosen: str, rank: int) -> list[str]:
    """How much work each layout makes of the same routing."""
    own = f"rank {rank}"
    lines = [f"rows per valid row             {'in the GEMM':>20}   {'in whole tiles':>20}"]
    lines.append(f"{'':30} {'all ranks':>10}{own:>10}   {'all ranks':>10}{own:>10}")
    for name, values in ratios.items():
        numbers = [
            "n/a" if values[key] is None else f"{values[key]:.2f}"
            for key in (
                "gemm_rows_per_valid_row",
                "rank_gemm_rows_per_valid_row",
                "tile_rows_per_valid_row",
                "rank_tile_rows_per_valid_row",
            )
        ]
        label = f"  {name}{' (drawn)' if name == chosen else ''}"
        lines.append(
            f"{label:30} {numbers[0]:>10}{numbers[1]:>10}   {numbers[2]:>10}{numbers[3]:>10}"
        )
    return lines


def layout(plan: Plan, limit: int) -> list[str]:
    """One line an expert: bands between bars, each character a slice of rows, a digit the owner of
    most of them."""
    tile_m = plan.tile[0]
    lines = [
        f"row layout: | band of {tile_m} rows |, one character is {_slice_text(tile_m)}: owner "
        f"rank, '{_PADDING}' nobody's"
    ]
    for number, expert in enumerate(plan.experts):
        if number == limit:
            lines.append(f"  ... {len(plan.experts) - limit} more experts")
            break
        first, bands = int(expert["first_band"]), int(expert["bands"])
        shown = min(bands, _BANDS_A_LINE)
        cells = [
            _band_text(plan.runs[number], band * tile_m, tile_m)
            for band in range(first, first + shown)
        ]
        more = f" ... {bands - shown} more bands" if bands > shown else ""
        drawn = f"|{'|'.join(cells)}|{more}" if bands else "no rows"
        lines.append(f"  expert {expert['expert']:>4}  row {expert['row_begin']:>8}  {drawn}")
    if len(plan.experts) == 0:
        lines.append("  no experts on this rank")
    return lines


def _slice_text(tile_m: int) -> str:
    return f"{tile_m / _CELLS:g} rows" if tile_m >= _CELLS else "1 row"


def _band_text(runs: npt.NDArray[Any], row_begin: int, tile_m: int) -> str:
    """The owners of one band's slices; `runs` are those of the band's expert."""
    begins, ends = runs["row_begin"], runs["row_begin"] + runs["row_count"]
    borders = np.linspace(row_begin, row_begin + tile_m, min(_CELLS, tile_m) + 1).astype(np.int64)
    text = ""
    for low, high in itertools.pairwise(borders):
        rows = np.minimum(ends, high) - np.maximum(begins, low)
        most = int(rows.argmax())
        owner = int(runs["owner"][most])
        if rows[most] <= 0:
            text += _PADDING
        else:
            text += _OWNERS[owner] if owner < len(_OWNERS) else "#"
    return text


def schedule(plan: Plan, limit: int) -> list[str]:
    """One line a group of interleaved bands."""
    lines = [f"tile order: {plan.bands} bands, each of {plan.tiles_n} column tiles"]
    order = plan.order
    begins = np.flatnonzero(order["group_begin"] == np.arange(len(order)))
    remote = {
        int(expert["expert"]): int(expert["first_band"]) + int(expert["remote_bands"])
        for expert in plan.experts
    }
    for number, begin in enumerate(begins):
        if number == limit:
            lines.append(f"  ... {len(begins) - limit} more groups")
            break
        group = order[begin : begin + order["group_size"][begin]]
        first, last = int(group["band"][0]), int(group["band"][-1])
        kind = "remote" if first < remote[int(group["expert"][0])] else "local"
        bands = f"band {first}" if first == last else f"bands {first}..{last}"
        lines.append(
            f"  tasks {begin * plan.tiles_n:>7}..{(begin + len(group)) * plan.tiles_n - 1:<7} "
            f"expert {group['expert'][0]:>4}  {bands:<16} {kind}"
        )
    if len(order) == 0:
        lines.append("  nothing to compute")
    return lines


def segments(plan: Plan, limit: int, row_bytes: int) -> list[str]:
    """One line a segment, in the order in which they can leave."""
    found = plan.segments
    rows = int(found["row_count"].sum())
    lines = [f"segments: {len(found)}, {rows} rows, {size_text(rows * row_bytes)}"]
    for number, segment in enumerate(found):
        if number == limit:
            lines.append(f"  ... {len(found) - limit} more segments")
            break
        begin, count, remote = (
            int(segment[name]) for name in ("row_begin", "row_count", "remote_row")
        )
        lines.append(
            f"  {number:>5}  to rank {segment['peer']:>3}  expert {segment['expert']:>4}  "
            f"bands {segment['first_band']}..{segment['last_band']}  rows "
            f"{begin}..{begin + count - 1}  "
            f"-> staging {remote}..{remote + count - 1}  {size_text(count * row_bytes)}"
        )
    if len(found) == 0:
        lines.append("  nothing to send")
    return lines


def arrays(columns: dict[str, npt.NDArray[Any]], limit: int) -> list[str]:
    """The paper's arrays, one line an entry."""
    names = list(columns)
    length = len(columns[names[0]])
    lines = [
        f"tile arrays: {length} entries, in schedule order",
        "  " + "".join(f"{name:>15}" for name in names),
    ]
    for number in range(min(length, limit)):
        lines.append("  " + "".join(f"{columns[name][number]:>15}" for name in names))
    if length > limit:
        lines.append(f"  ... {length - limit} more entries")
    return lines
