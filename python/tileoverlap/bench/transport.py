"""The return alone: rate by SMs and size (the paper's Figure 3a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tileoverlap.bench.loop_back import (
    LINKS,
    Choice,
    LoopBack,
    make_tensors,
    rank_plan,
    routed_counts,
)
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.timing import Variant, interleaved

__all__ = ["SIZES", "SMS", "find_link", "measure_transport"]

Row = dict[str, Any]
SMS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24)
SIZES = (256, 1024, 4096, 16384)
"""Tokens on each rank, of 16 KiB rows."""
_NEARLY = 0.95
_SHAPE = Shape("copy", 4, 16, 1, 0, 8192, 64)


def measure_transport(
    torch: Any,
    *,
    tokens: int,
    sms: Sequence[int] = SMS,
    dtype: str = "bfloat16",
    repetitions: int = 30,
    link: str = LINKS[0],
) -> list[Row]:
    """A row a number of SMs; GB/s of rows that reach their owners."""
    shape = replace(_SHAPE, tokens=tokens)
    placement, counts = routed_counts(shape, "balanced")
    plan = rank_plan(shape, placement, counts, Choice())
    rank = LoopBack(torch, plan, shape, dtype, make_tensors(torch, plan, shape, dtype), link)
    variants = {
        str(number): Variant(partial(rank.ship, number, wait=False), rank.begin) for number in sms
    }
    times = interleaved(torch, variants, repetitions)
    rank.check()
    return [
        {
            "link": link,
            "bytes": rank.shipped_bytes,
            "sms": number,
            "us": times[str(number)].median,
            "gbs": rank.shipped_bytes / times[str(number)].median * 1e-3,
        }
        for number in sms
    ]


def find_link(torch: Any, gbs: float, dtype: str = "bfloat16", link: str = LINKS[0]) -> int:
    """The fewest SMs whose return alone reaches `gbs` GB/s or, on a link that is slower, nearly all
    that it gives."""
    rows = measure_transport(
        torch, tokens=SIZES[-1], sms=SMS[:10], dtype=dtype, repetitions=10, link=link
    )
    wanted = min(gbs, _NEARLY * max(row["gbs"] for row in rows))
    return next(int(row["sms"]) for row in rows if row["gbs"] >= wanted)
