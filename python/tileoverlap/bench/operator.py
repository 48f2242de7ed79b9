"""The operator, GEMM and return, beside serial and chunked systems on the same link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from tileoverlap.bench.checks import check_operator, check_stored
from tileoverlap.bench.loop_back import (
    LINKS,
    Choice,
    LoopBack,
    Tensors,
    make_tensors,
    rank_plan,
    routed_counts,
)
from tileoverlap.bench.peers import captured, cublas_loop, expert_products
from tileoverlap.bench.router import mode_name
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.timing import Variant, interleaved
from tileoverlap.counts import RouteCounts
from tileoverlap.placement import Placement
from tileoverlap.timeline import overlap_times

__all__ = ["measure_operator"]

_STREAMS = 4
_CHUNKS = (2, 4)
_RECORDED = 9
Row = dict[str, Any]
Launch = Callable[[], Any]


def measure_operator(
    torch: Any,
    shape: Shape,
    choice: Choice,
    *,
    comm_sms: int,
    mode: str = "balanced",
    dtype: str = "bfloat16",
    repetitions: int = 50,
    bases: bool = True,
    link: str = LINKS[0],
) -> Row:
    """One row; times are medians, in us.

    All variants but `stored` return rows by the same kernel on `comm_sms` SMs over the same `link`.

    - gemm: the GEMM without flags, on all SMs; copy: the return alone.
    - b0: a cuBLAS call an expert, then the return. b0s: the same over four streams.
    - b1: the GEMM without flags on all SMs, then the return, in a CUDA graph.
    - b2_2, b2_4: the same in 2 or 4 chunks of experts, GEMM and return side by side, in a graph.
    - ours: the overlapped operator. stored: its GEMM, on all SMs, stores rows at their owners
      itself; stored_gbs is what crosses the link meanwhile, which nothing paces.

    bound = (gemm + copy) / max(gemm, copy); reached: the part of it, max(gemm, copy) / ours.
    """
    placement, counts = routed_counts(shape, mode)
    plan = rank_plan(shape, placement, counts, choice)
    tensors = make_tensors(torch, plan, shape, dtype)
    rank = LoopBack(torch, plan, shape, dtype, tensors, link)
    check_operator(torch, rank, tensors, comm_sms, dtype)
    if rank.can_store:
        check_stored(torch, rank, tensors)

    def graph(run: Launch) -> Variant:
        return Variant(captured(torch, run))

    gemm = partial(rank.produce, rank.sms, publish=False)
    variants = {
        "gemm": Variant(gemm, rank.begin),
        "part": Variant(lambda: rank.produce(rank.sms - comm_sms), rank.begin),
        "copy": Variant(lambda: rank.ship(comm_sms, wait=False), rank.begin),
        "b1": graph(_then_return(rank, gemm, comm_sms)),
        "ours": Variant(lambda: rank.operator(comm_sms)),
        "ours_graph": graph(lambda: rank.operator(comm_sms)),
    }
    if rank.can_store:
        variants |= {"stored": Variant(rank.stored), "stored_graph": graph(rank.stored)}
    if bases:
        packed = tensors.packed_output()
        loop = cublas_loop(torch, tensors, packed)
        variants["b0"] = Variant(_then_return(rank, loop, comm_sms))
        spread = _over_streams(torch, tensors, packed)
        variants["b0s"] = Variant(_then_return(rank, spread, comm_sms))
        if choice.layout == "compact":
            for chunks in _CHUNKS:
                if chunks <= shape.experts_a_rank:
                    run = _chunked(
                        torch,
                        shape,
                        placement,
                        counts,
                        choice,
                        plan.rank,
                        tensors,
                        dtype,
                        chunks,
                        comm_sms,
                        link,
                    )
                    variants[f"b2_{chunks}"] = graph(run)
    times = interleaved(torch, variants, repetitions)
    recorded = [overlap_times([timeline]) for timeline in rank.timelines(comm_sms, _RECORDED)]
    lag_us = 1e-3 * median(times.landed_after_ns for times in recorded)
    rank.check()
    us = {name: timing.median for name, timing in times.items()}
    longest = max(us["gemm"], us["copy"])
    ours = min(us["ours"], us["ours_graph"])
    row: Row = {
        "shape": shape.name,
        "mode": mode_name(mode),
        "dtype": dtype,
        "layout": choice.layout,
        "link": link,
        "rows": plan.valid_rows,
        "gemm_rows": plan.gemm_rows,
        "experts": shape.experts_a_rank,
        "n": shape.n,
        "k": shape.k,
        "kernel": rank.kernel,
        "group": choice.group,
        "bands_per_segment": choice.bands_per_segment,
        "comm_sms": comm_sms,
        "copy_gbs": rank.shipped_bytes / us["copy"] * 1e-3,
        **{f"{name}_us": value for name, value in us.items()},
        "ours_p10_us": times["ours"].p10,
        "ours_p90_us": times["ours"].p90,
        "best_us": ours,
        "over_b1": us["b1"] / ours,
        "bound": (us["gemm"] + us["copy"]) / longest,
        "reached": longest / ours,
        "overlap_timeline": 1.0 - lag_us / us["copy"],
        "overlap_wall": (us["gemm"] + us["copy"] - ours) / us["copy"],
    }
    if rank.can_store:
        stored = min(us["stored"], us["stored_graph"])
        row |= {
            "stored_gbs": rank.shipped_bytes / stored * 1e-3,
            "stored_over_b1": us["b1"] / stored,
            "stored_reached": longest / stored,
        }
        if bases:
            row["stored_over_b0"] = us["b0"] / stored
    if bases:
        row |= {"over_b0": us["b0"] / ours, "over_b0s": us["b0s"] / ours}
        chunked = [value for name, value in us.items() if name.startswith("b2")]
        if chunked:
            row["over_b2"] = min(chunked) / ours
    return row


def _then_return(rank: LoopBack, gemm: Launch, comm_sms: int) -> Launch:
    def run() -> None:
        rank.begin()
        gemm()
        rank.ship(comm_sms, wait=False)

    return run


def _over_streams(torch: Any, tensors: Tensors, output: Any) -> Launch:
    streams = [torch.cuda.Stream() for _ in range(_STREAMS)]
    begun, done = torch.cuda.Event(), [torch.cuda.Event() for _ in streams]
    products = expert_products(torch, tensors, output)

    def run() -> None:
        current = torch.cuda.current_stream()
        begun.record(current)
        for stream in streams:
            stream.wait_event(begun)
        for number, product in enumerate(products):
            with torch.cuda.stream(streams[number % _STREAMS]):
                product()
        for stream, event in zip(streams, done, strict=True):
            event.record(stream)
            current.wait_event(event)

    return run


def _chunked(
    torch: Any,
    shape: Shape,
    placement: Placement,
    counts: RouteCounts,
    choice: Choice,
    place: int,
    tensors: Tensors,
    dtype: str,
    chunks: int,
    comm_sms: int,
    link: str,
) -> Launch:
    """While one chunk of experts is returned, the next one's GEMM runs on the SMs left.

    `place`: the rank whose operator it is.
    """
    ranks = []
    row = 0
    for experts in np.array_split(np.arange(shape.experts_a_rank), chunks):
        matrix = np.zeros_like(counts.array)
        matrix[:, experts] = counts.array[:, experts]
        plan = rank_plan(shape, placement, RouteCounts(placement, matrix), choice, place)
        if plan.rows == 0:
            continue
        part = replace(
            tensors,
            rows=tensors.rows[row : row + plan.rows],
            output=tensors.output[row : row + plan.rows],
        )
        row += plan.rows
        ranks.append(LoopBack(torch, plan, shape, dtype, part, link))
    comm = torch.cuda.Stream(priority=-1)
    produced = [torch.cuda.Event() for _ in ranks]
    returned = torch.cuda.Event()

    def run() -> None:
        current = torch.cuda.current_stream()
        for number, (rank, event) in enumerate(zip(ranks, produced, strict=True)):
            rank.begin()
            rank.produce(rank.sms - (comm_sms if number else 0), publish=False)
            event.record(current)
            comm.wait_event(event)
            with torch.cuda.stream(comm):
                rank.ship(comm_sms, wait=False)
        returned.record(comm)
        current.wait_event(returned)

    return run
