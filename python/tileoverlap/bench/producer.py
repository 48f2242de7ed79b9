"""The signalling GEMM beside what others use, in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tileoverlap.bench.checks import check_gemm
from tileoverlap.bench.loop_back import (
    Choice,
    LoopBack,
    Tensors,
    make_tensors,
    rank_plan,
    routed_counts,
)
from tileoverlap.bench.peers import producer_peers, square
from tileoverlap.bench.router import mode_name
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.timing import Variant, interleaved

__all__ = ["OURS", "measure_producer", "summarise"]

OURS = ("flags", "plain", "spared")
_OTHER = {"bfloat16": "float16", "float16": "bfloat16"}
Row = dict[str, Any]


def measure_producer(
    torch: Any,
    shape: Shape,
    choices: Sequence[Choice],
    *,
    mode: str = "balanced",
    dtype: str = "bfloat16",
    repetitions: int = 50,
    spared_sms: int = 12,
    peers: bool = True,
) -> list[Row]:
    """One row a choice, all measured in turn. TFLOP/s count valid rows; times are medians, in us.

    Variants: flags (all SMs, a flag behind each tile), plain (no flags), spared (flags, without
    `spared_sms` SMs), and with `peers` these and the first choice's flags in the other 16-bit type.
    """
    placement, counts = routed_counts(shape, mode)
    variants: dict[str, Variant] = {}
    ranks = []
    first = None
    by_height: dict[int, Tensors] = {}  # rows lie where bands of this height begin
    for number, choice in enumerate(choices):
        plan = rank_plan(shape, placement, counts, choice)
        tensors = by_height.get(choice.tile[0]) or make_tensors(torch, plan, shape, dtype)
        by_height[choice.tile[0]] = tensors
        first = first or tensors
        rank = LoopBack(torch, plan, shape, dtype, tensors)
        ranks.append(rank)
        tensors.output.fill_(float("nan"))
        rank.begin()
        rank.produce(rank.sms)
        check_gemm(torch, plan, tensors, dtype)
        for name, sms, publish in (
            ("flags", rank.sms, True),
            ("plain", rank.sms, False),
            ("spared", rank.sms - spared_sms, True),
        ):
            body = partial(rank.produce, sms, publish)
            variants[f"{name}/{number}"] = Variant(body, rank.begin)
    assert first is not None, "at least one choice"
    theirs: list[str] = []
    if peers:
        launches = producer_peers(torch, first)
        theirs = list(launches)
        variants |= {name: Variant(launch) for name, launch in launches.items()}
        other = _in_type(torch, shape, ranks[0], first, _OTHER[dtype])
        variants["other"] = Variant(partial(other.produce, other.sms), other.begin)
    launch, square_flops = square(torch, dtype)
    variants["square"] = Variant(launch)
    times = interleaved(torch, variants, repetitions)
    flops = 2.0 * ranks[0].plan.valid_rows * shape.n * shape.k
    rate = {
        name: (square_flops if name == "square" else flops) / timing.median * 1e-6
        for name, timing in times.items()
    }
    rows = []
    for number, (choice, rank) in enumerate(zip(choices, ranks, strict=True)):
        row: Row = {
            "shape": shape.name,
            "mode": mode_name(mode),
            "dtype": dtype,
            "rows": rank.plan.valid_rows,
            "experts": shape.experts_a_rank,
            "n": shape.n,
            "k": shape.k,
            "kernel": rank.kernel,
            "tile": list(choice.tile),
            "group": choice.group,
            "sms": rank.sms,
            "spared_sms": spared_sms,
        }
        for name in OURS:
            timing = times[f"{name}/{number}"]
            row |= {
                f"{name}_us": timing.median,
                f"{name}_p10_us": timing.p10,
                f"{name}_p90_us": timing.p90,
                f"{name}_tflops": rate[f"{name}/{number}"],
            }
        for name in theirs:
            row |= {f"{name}_us": times[name].median, f"{name}_tflops": rate[name]}
        row["square_tflops"] = rate["square"]
        if theirs:
            best = max(theirs, key=rate.__getitem__)
            row |= {"best_peer": best, "to_best_peer": row["flags_tflops"] / rate[best]}
            row |= {
                "other_dtype": _OTHER[dtype],
                "other_us": times["other"].median,
                "other_tflops": rate["other"],
            }
        rows.append(row)
    return rows


def _in_type(torch: Any, shape: Shape, rank: LoopBack, tensors: Tensors, dtype: str) -> LoopBack:
    """The same GEMM on the same values, rounded to another type."""
    kind = getattr(torch, dtype)
    cast = replace(
        tensors,
        **{
            name: getattr(tensors, name).to(kind)
            for name in ("rows", "packed", "weights", "output")
        },
    )
    other = LoopBack(torch, rank.plan, shape, dtype, cast)
    other.begin()
    other.produce(other.sms)
    check_gemm(torch, rank.plan, cast, dtype)
    return other


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """Geometric means, and the worst, over the rows."""

    def mean(values: list[float]) -> float:
        product = 1.0
        for value in values:
            product *= value ** (1 / len(values))
        return product

    summary = {
        "flags_over_plain": mean([row["flags_us"] / row["plain_us"] for row in rows]),
        # Of the share of SMs that is left.
        "spared_to_share": mean(
            [
                row["spared_tflops"]
                / row["flags_tflops"]
                * row["sms"]
                / (row["sms"] - row["spared_sms"])
                for row in rows
            ]
        ),
        "to_square": mean([row["flags_tflops"] / row["square_tflops"] for row in rows]),
    }
    ratios = [row["to_best_peer"] for row in rows if "to_best_peer" in row]
    if ratios:
        summary |= {"to_best_peer": mean(ratios), "worst_to_best_peer": min(ratios)}
    others = [row["other_tflops"] / row["flags_tflops"] for row in rows if "other_tflops" in row]
    if others:
        summary["other_type"] = mean(others)
    return summary
