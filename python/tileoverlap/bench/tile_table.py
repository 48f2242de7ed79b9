"""The table of measured tiles that the library is built with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileoverlap.cuda_executor import CudaDevice

__all__ = ["table_of"]

_DEFAULT = ([128, 128], 8)
_WORTH = 1.01
"""A choice beats the default by so much or more; less is noise."""

Row = dict[str, Any]


def table_of(rows: Sequence[Row], device: CudaDevice) -> str:
    """src/produce/tile_table.inc from the rows of `tileoverlap bench tune`: one line a shape."""
    by_shape: dict[str, list[Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], []).append(row)
    lines = [
        "// Written by `tileoverlap bench tune --table`: device, compute capability, rows and",
        "// experts of a rank, k, n, and the fastest tile_m, tile_n and group.",
    ]
    for measured in by_shape.values():
        best = _fastest(measured)
        entry = [
            f'"{device.name}"',
            device.capability_number,
            *(best[name] for name in ("rows", "experts", "k", "n")),
            *best["tile"],
            best["group"],
        ]
        lines.append(f"{{{', '.join(map(str, entry))}}},")
    return "\n".join(lines) + "\n"


def _fastest(measured: Sequence[Row]) -> Row:
    best = min(measured, key=_time)
    defaults = [row for row in measured if (row["tile"], row["group"]) == _DEFAULT]
    if defaults and _time(defaults[0]) <= _WORTH * _time(best):
        return defaults[0]
    return best


def _time(row: Row) -> float:
    return float(row["flags_us"])
