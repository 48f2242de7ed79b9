"""Rates of a GPU from what benchmarks have measured, and how well predictions meet it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tileoverlap.bench.loop_back import Choice, rank_plan, routed_counts
from tileoverlap.bench.shapes import find_shapes
from tileoverlap.errors import InvalidArgument
from tileoverlap.predict import AS_GOOD, GpuRates, LinkRates, MeasuredGemm, Operator, predict

__all__ = [
    "Chosen",
    "Measured",
    "Met",
    "choices",
    "compare",
    "fit",
    "fit_steps",
    "measured_gemms",
    "measured_operators",
    "table_of",
]

Row = dict[str, Any]

_LOOP_BACK = LinkRates(gbs=0.0, latency_us=0.0)
"""The benchmarks' link is the GPU's own memory, which SMs cannot fill."""

_FITTED = {
    # field: first step of the search
    "ship_share": 0.08,
    "gemm_slowdown": 0.01,
    "tile_us": 3.0,
    "end_us": 2.0,
}
_ROUNDS = 12


@dataclass(frozen=True)
class Measured:
    """One row of `tileoverlap bench operator`, `partition` or `experts`."""

    name: str
    operator: Operator
    rank: int
    """The one that was measured."""
    bands: int
    comm_sms: int
    gemm_us: float
    part_us: float
    """The GEMM without the SMs that ship."""
    copy_us: float
    copy_gbs: float
    serial_us: float
    overlapped_us: float
    """In a CUDA graph."""


class Met(NamedTuple):
    """One row and its prediction; us."""

    row: Measured
    from_table: float
    """By the GPU's rates alone."""
    in_its_clock: float
    """With the row's own GEMM and return, each measured alone: clocks move from run to run."""


class Chosen(NamedTuple):
    """Of one operator that was measured with several numbers of SMs that ship: the number that is
    predicted to be fastest, from the GPU's rates alone, beside the fastest; us, as measured."""

    name: str
    comm_sms: int
    us: float
    best_comm_sms: int
    best_us: float


def measured_operators(rows: Iterable[Row], gpu: GpuRates) -> list[Measured]:
    """The rows over memory of the GPU itself whose routing can be drawn anew; other rows are left
    out."""
    found: list[Measured] = []
    plans: dict[Any, Any] = {}
    for row in rows:
        if "ours_graph_us" not in row or row.get("link", "hbm") != "hbm" or ":" in row["mode"]:
            continue
        choice = Choice(
            tile=_tile_of(row["kernel"]),
            group=row["group"],
            layout=row["layout"],
            bands_per_segment=row["bands_per_segment"],
        )
        shape = find_shapes(row["shape"])[0]
        key = (shape.name, row["mode"], choice)
        if key not in plans:
            placement, counts = routed_counts(shape, row["mode"])
            plans[key] = placement, counts, rank_plan(shape, placement, counts, choice)
        placement, counts, plan = plans[key]
        if plan.valid_rows != row["rows"]:
            raise InvalidArgument(
                f"{shape.name}, {row['mode']}: {row['rows']} rows were measured, drawn anew "
                f"they are {plan.valid_rows}"
            )
        found.append(
            Measured(
                name=f"{shape.name}, {row['mode']}, {row['layout']}",
                operator=Operator(
                    placement=placement,
                    counts=counts,
                    k=shape.k,
                    n=shape.n,
                    gpu=gpu,
                    link=_LOOP_BACK,
                    tile=choice.tile,
                    layout=choice.layout,
                    bands_per_segment=choice.bands_per_segment,
                    group=choice.group,
                ),
                rank=plan.rank,
                bands=plan.bands,
                comm_sms=row["comm_sms"],
                gemm_us=row["gemm_us"],
                part_us=row["part_us"],
                copy_us=row["copy_us"],
                copy_gbs=row["copy_gbs"],
                serial_us=row["b1_us"],
                overlapped_us=row["ours_graph_us"],
            )
        )
    return found


def measured_gemms(rows: Iterable[Row]) -> tuple[MeasuredGemm, ...]:
    """The rows of `tileoverlap bench producer` and `tune`: of each shape and tile the fastest."""
    fastest: dict[tuple[Any, ...], MeasuredGemm] = {}
    for row in rows:
        if "plain_us" not in row:
            continue
        tile_m, tile_n = _tile_of(row["kernel"])
        gemm = MeasuredGemm(
            rows=row["rows"],
            experts=row["experts"],
            k=row["k"],
            n=row["n"],
            tile_m=tile_m,
            tile_n=tile_n,
            us=round(row["plain_us"], 1),
        )
        key = gemm[:-1]
        if key not in fastest or gemm.us < fastest[key].us:
            fastest[key] = gemm
    return tuple(fastest.values())


def compare(rows: Sequence[Measured], gpu: GpuRates) -> list[Met]:
    """Each row beside its predictions."""
    return [
        Met(row, _overlapped(row, gpu), _overlapped(row, _in_clock_of(row, gpu))) for row in rows
    ]


def choices(met: Sequence[Met]) -> list[Chosen]:
    """By operator; those that were measured with one number of SMs are left out."""
    by_name: dict[str, list[Met]] = {}
    for one in met:
        by_name.setdefault(one.row.name, []).append(one)
    found = []
    for name, same in by_name.items():
        if len({one.row.comm_sms for one in same}) < 2:
            continue
        most = AS_GOOD * min(one.from_table for one in same)
        as_good = (one.row for one in same if one.from_table <= most)
        chosen = min(as_good, key=lambda row: row.comm_sms)
        best = min(same, key=lambda one: one.row.overlapped_us).row
        found.append(
            Chosen(name, chosen.comm_sms, chosen.overlapped_us, best.comm_sms, best.overlapped_us)
        )
    return found


def fit(
    rows: Sequence[Measured], gpu: GpuRates, step: Callable[[], None] = lambda: None
) -> GpuRates:
    """The rates that the rows give: medians of what was measured alone, and for what shows only in
    overlapped calls the values with which predictions in each row's own clock meet the rows best,
    in the mean of squared relative errors: coordinate by coordinate, with steps that shrink.

    Args:
        step: called after each of `fit_steps` trials, for a progress bar.
    """
    if not rows:
        raise InvalidArgument("no row of tileoverlap bench operator, partition or experts is there")
    gpu = replace(
        gpu,
        ship_gbs=round(median(row.copy_gbs / row.comm_sms for row in rows), 2),
        clock_relief=round(max(0.0, median(_relief(row, gpu) for row in rows)), 3),
        gemm_scale=1.0,
    )
    scale = median(row.gemm_us / _gemm_us(row, gpu, gpu.sms) for row in rows)
    gpu = replace(gpu, gemm_scale=round(scale, 4))
    best = _loss(rows, gpu)
    steps = dict(_FITTED)
    for _ in range(_ROUNDS):
        for name in _FITTED:
            for sign in (1, -1):
                value = getattr(gpu, name) + sign * steps[name]
                step()
                if value <= 0:
                    continue
                trial = replace(gpu, **{name: value})
                loss = _loss(rows, trial)
                if loss < best:
                    gpu, best = trial, loss
                    break
            else:
                steps[name] /= 2
    return replace(gpu, **{name: round(getattr(gpu, name), 4) for name in _FITTED})


fit_steps = _ROUNDS * 2 * len(_FITTED)


def table_of(gpu: GpuRates) -> str:
    """src/predict/gpu_rates.inc."""
    numbers = [
        name for name in GpuRates.__dataclass_fields__ if name not in ("device", "gemms", "source")
    ]
    fields = [f'.device = "{gpu.device}"']
    fields += [f".{name} = {getattr(gpu, name):g}" for name in numbers]
    gemms = [f"{{{', '.join(f'{value:g}' for value in gemm)}}}," for gemm in gpu.gemms]
    return "\n".join(
        [
            "// Written by `tileoverlap rates --fit`: GpuRates, with a line for each GEMM that was",
            "// measured: rows, experts, k, n, tile_m, tile_n, us.",
            "{" + ",\n ".join(fields) + ",",
            " .gemms = {",
            *(f"     {gemm}" for gemm in gemms),
            " }},",
            "",
        ]
    )


def _loss(rows: Sequence[Measured], gpu: GpuRates) -> float:
    errors = [_overlapped(row, _in_clock_of(row, gpu)) / row.overlapped_us - 1 for row in rows]
    return float(np.mean(np.square(errors)))


def _overlapped(row: Measured, gpu: GpuRates) -> float:
    operator = replace(row.operator, gpu=gpu)
    return predict(operator, [row.comm_sms], [row.rank])[0].overlapped_us


def _in_clock_of(row: Measured, gpu: GpuRates) -> GpuRates:
    """With the GEMM on the SMs that are left, and the return alone, as the row has them."""
    at_hand = _gemm_us(row, gpu, gpu.sms - row.comm_sms)
    return replace(
        gpu,
        gemm_scale=gpu.gemm_scale * row.part_us / at_hand,
        ship_gbs=row.copy_gbs / row.comm_sms,
    )


def _gemm_us(row: Measured, gpu: GpuRates, sms: int) -> float:
    return gpu.gemm_us(
        bands=row.bands,
        experts=row.operator.placement.experts_on(row.rank),
        k=row.operator.k,
        n=row.operator.n,
        tile=row.operator.tile,
        sms=sms,
    )


def _relief(row: Measured, gpu: GpuRates) -> float:
    """The exponent with which the row's GEMM lost less than its share of the SMs."""
    sms = gpu.sms - row.comm_sms
    tiles = row.bands * -(-row.operator.n // row.operator.tile[1])
    waves, all_waves = -(-tiles // sms), -(-tiles // gpu.sms)
    return float(np.log(row.part_us / row.gemm_us * all_waves / waves) / np.log(sms / gpu.sms))


def _tile_of(kernel: str) -> tuple[int, int]:
    """(128, 256) of sm90a_bfloat16_128x256_pingpong_single."""
    found = re.search(r"_(\d+)x(\d+)_", kernel)
    if found is None:
        raise InvalidArgument(f"the kernel '{kernel}' names no tile")
    return int(found[1]), int(found[2])
