"""tileoverlap run: one MoE layer on ranks of this machine: is it right, what does it move, how much
is hidden."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

from tileoverlap import __version__
from tileoverlap.cli._measure import Case, Measured, measure
from tileoverlap.cli._output import OutputFile, finite, print_json, size_text
from tileoverlap.cli._parser import UsageError, choice, count, seconds
from tileoverlap.cli._workload import (
    QUICK,
    Workload,
    add_plan_arguments,
    add_routing_arguments,
    load_workload,
    plan_keywords,
)
from tileoverlap.cli.info import memory_bytes
from tileoverlap.execute import DTYPES, EXPERT_KINDS
from tileoverlap.plan import Plan, make_plan, size_report
from tileoverlap.reference import TOLERANCES
from tileoverlap.timeline import to_chrome_trace

__all__ = ["add_parser"]

_DEVICES = ("cpu",)
_MOST_THREADS = 4096
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "run",
        help="run one MoE layer and check it",
        description="Runs one Mixture-of-Experts layer on W ranks of this process with random data, overlapped and "
        "serial, and compares both with each other and with a float64 reference.",
    )
    add_routing_arguments(parser, default_routing=QUICK)
    parser.add_argument(
        "--hidden",
        type=count(),
        default=512,
        metavar="N",
        help="elements of a token and of a returned row",
    )
    parser.add_argument(
        "--inner",
        type=count(),
        default=256,
        metavar="K",
        help="width between an expert's two projections",
    )
    parser.add_argument(
        "--dtype", type=choice(DTYPES), default="float32", metavar="D", help=" or ".join(DTYPES)
    )
    parser.add_argument(
        "--expert",
        type=choice(EXPERT_KINDS),
        default="silu_gate",
        metavar="KIND",
        help=" or ".join(EXPERT_KINDS),
    )
    parser.add_argument(
        "--device", type=choice(_DEVICES), default="cpu", metavar="D", help="where it runs: cpu"
    )
    add_plan_arguments(parser)
    parser.add_argument(
        "--producer-threads", type=count(high=1024), default=1, metavar="N", help="a rank"
    )
    parser.add_argument(
        "--consumer-threads", type=count(high=1024), default=1, metavar="N", help="a rank"
    )
    parser.add_argument(
        "--iterations",
        type=count(high=1_000_000),
        default=10,
        metavar="N",
        help="after one warm-up, in each mode",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="limit of every wait, seconds"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="write the last overlapped call for chrome://tracing or Perfetto",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    workload = load_workload(options)
    case = Case(
        workload=workload,
        hidden=options.hidden,
        inner=options.inner,
        dtype=options.dtype,
        expert=options.expert,
        plan=plan_keywords(options),
        producer_threads=options.producer_threads,
        consumer_threads=options.consumer_threads,
        iterations=options.iterations,
        timeout_s=options.timeout,
    )
    _check_size(case)
    with ExitStack() as stack:
        timeline = None
        if options.timeline is not None:
            timeline = stack.enter_context(OutputFile(options.timeline, "the timeline"))
        measured = measure(case)
        plans = [
            make_plan(workload.placement, rank, workload.counts, n=case.hidden, **case.plan)
            for rank in range(workload.placement.world)
        ]
        report = _report(case, measured, plans)
        if timeline is not None:
            timeline.stream.write(to_chrome_trace(measured.timelines).encode())
            timeline.commit()
        if options.json:
            print_json(report)
        else:
            _print(report)
            if options.timeline is not None:
                print(f"timeline: {options.timeline}")
    return 0 if report["correct"] else 1


def _check_size(case: Case) -> None:
    """Refuses what this machine cannot hold before anything is allocated."""
    world = case.workload.placement.world
    threads = world * (1 + case.producer_threads + case.consumer_threads)
    if threads > _MOST_THREADS:
        raise UsageError(
            f"{world} ranks with these threads need {threads} threads, at most {_MOST_THREADS} are "
            "run"
        )
    need, have = _needed_bytes(case), memory_bytes()
    if have is not None and need > have:
        raise UsageError(
            f"these sizes need {size_text(need)} of memory, this machine has {size_text(have)}"
        )


def _needed_bytes(case: Case) -> int:
    placement = case.workload.placement
    element = _ELEMENT_BYTES[case.dtype]
    tokens = [len(part.ids) for part in case.workload.routed]
    # Random weights are made in float32 before they are converted; x and out exist in float64, too.
    weights = placement.experts * case.hidden * (case.inner + case.up_rows) * (element + 4)
    rows = sum(tokens) * (case.input_width + 2 * case.hidden) * (2 * element + 8)
    workspace = sum(
        size_report(
            placement,
            rank,
            max_tokens=max(tokens),
            top_k=case.workload.top_k,
            dtype=case.dtype,
            k=max(case.input_width, case.inner + case.up_rows),
            n=case.hidden,
            tile=case.plan["tile"],
            layout=case.plan["layout"],
        ).total_bytes
        for rank in range(placement.world)
    )
    return weights + rows + workspace


def _report(case: Case, measured: Measured, plans: list[Plan]) -> dict[str, Any]:
    limits = TOLERANCES[case.dtype]
    comparison = measured.comparison
    timeline_ratio, wall_ratio = measured.overlap_ratios()
    ranks = [_rank_report(case, plan) for plan in plans]
    loads = [rank["valid_rows"] for rank in ranks]
    return {
        "command": "run",
        "version": __version__,
        "options": _options(case),
        "ranks": ranks,
        "load_max_over_mean": max(loads) * len(loads) / sum(loads) if sum(loads) else None,
        "gemm_rows_per_valid_row": sum(plan.gemm_rows for plan in plans) / sum(loads)
        if sum(loads)
        else None,
        "times_ms": {
            "layer_overlapped": measured.median_ms("overlapped", "layer"),
            "layer_serial": measured.median_ms("serial", "layer"),
            "operator_overlapped": measured.median_ms("overlapped", "operator"),
            "operator_serial": measured.median_ms("serial", "operator"),
            "gemm_alone": measured.median_ms("serial", "gemm"),
            "return_alone": measured.median_ms("serial", "after_gemm"),
            "return_not_hidden": measured.median_ms("overlapped", "after_gemm"),
        },
        "threads": {
            "a_rank": 1 + case.producer_threads + case.consumer_threads,
            "in_all": len(plans) * (1 + case.producer_threads + case.consumer_threads),
            "cores": os.cpu_count(),
        },
        "overlap_ratio": {"timeline": finite(timeline_ratio), "wall": finite(wall_ratio)},
        "error": {
            "per_token": finite(comparison.per_token),
            "per_token_limit": limits.per_token,
            "relative_l2": finite(comparison.relative_l2),
            "relative_l2_limit": limits.relative_l2,
            "ok": comparison.ok,
        },
        "bit_equal": measured.bit_equal,
        "correct": comparison.ok and measured.bit_equal,
    }


def _options(case: Case) -> dict[str, Any]:
    workload: Workload = case.workload
    return {
        "device": "cpu",
        "ranks": workload.placement.world,
        "experts": workload.placement.experts,
        "top_k": workload.top_k,
        "tokens": [len(part.ids) for part in workload.routed],
        "routing": workload.routing,
        "hidden": case.hidden,
        "inner": case.inner,
        "expert": case.expert,
        "dtype": case.dtype,
        "tile": list(case.plan["tile"]),
        "layout": case.plan["layout"],
        "bands_per_segment": case.plan["bands_per_segment"],
        "group": case.plan["group"],
        "producer_threads": case.producer_threads,
        "consumer_threads": case.consumer_threads,
        "iterations": case.iterations,
        "seed": workload.seed,
    }


def _rank_report(case: Case, plan: Plan) -> dict[str, Any]:
    element = _ELEMENT_BYTES[case.dtype]
    local = int(plan.dispatched_rows[plan.rank])
    sent_back = int(plan.dispatched_rows.sum()) - local
    copies = int(plan.copies_of[plan.rank])
    return {
        "rank": plan.rank,
        "experts": len(plan.experts),
        "tokens": len(case.workload.routed[plan.rank].ids),
        "copies": copies,
        "valid_rows": plan.valid_rows,
        "gemm_rows": plan.gemm_rows,
        "padding_rows": plan.gemm_rows - plan.valid_rows,
        "tile_rows": plan.rows,
        "bands": plan.bands,
        "segments": len(plan.segments),
        "dispatched_bytes": (copies - local) * case.input_width * element,
        "returned_bytes": sent_back * case.hidden * element,
        "received_bytes": int(plan.returned_rows.sum()) * case.hidden * element,
    }


def _print(report: dict[str, Any]) -> None:
    options, times, error = report["options"], report["times_ms"], report["error"]
    tokens = sorted(set(options["tokens"]))
    print(
        f"{options['ranks']} ranks on the {options['device']}, {options['experts']} experts, "
        f"{'..'.join(map(str, tokens[:: max(1, len(tokens) - 1)]))} tokens a rank, "
        f"top-{options['top_k']}, "
        f"{options['routing']} routing"
    )
    print(
        f"hidden {options['hidden']}, inner {options['inner']}, {options['expert']} experts, "
        f"{options['dtype']}, "
        f"{options['layout']} layout, tiles {options['tile'][0]} x {options['tile'][1]}"
    )
    print()
    print(
        "rank  experts   copies     rows  padding  in tiles  segments  dispatched    returned    "
        "received"
    )
    for rank in report["ranks"]:
        print(
            f"{rank['rank']:>4}{rank['experts']:>9}{rank['copies']:>9}{rank['valid_rows']:>9}"
            f"{rank['padding_rows']:>9}{rank['tile_rows']:>10}{rank['segments']:>10}"
            + "".join(
                f"{size_text(rank[key]):>12}"
                for key in ("dispatched_bytes", "returned_bytes", "received_bytes")
            )
        )
    print(
        f"busiest rank {_number(report['load_max_over_mean'])} times the mean; "
        f"GEMM rows per valid row {_number(report['gemm_rows_per_valid_row'])}"
    )
    print()
    print(f"median of {options['iterations']}, slowest rank      overlapped      serial")
    print(
        f"  layer                       {times['layer_overlapped']:>9.2f} "
        f"ms{times['layer_serial']:>9.2f} ms"
    )
    print(
        f"  GEMM and return             {times['operator_overlapped']:>9.2f} "
        f"ms{times['operator_serial']:>9.2f} ms"
    )
    print(
        f"  of that, behind the GEMM    {times['return_not_hidden']:>9.2f} "
        f"ms{times['return_alone']:>9.2f} ms"
    )
    ratio = report["overlap_ratio"]
    print(
        f"overlap ratio: {_number(ratio['timeline'])} by timeline, {_number(ratio['wall'])} by "
        "wall time"
    )
    threads = report["threads"]
    if ratio["timeline"] is None:
        print("  n/a: no row travels between ranks")
    elif threads["cores"] is not None and threads["in_all"] > threads["cores"]:
        print(
            f"  {threads['in_all']} threads share {threads['cores']} cores: this shows that the "
            "mechanism works, "
            "not what it gains"
        )
    print()
    print(
        f"error against float64: {_error(error['per_token'])} of a token's largest value (limit "
        f"{error['per_token_limit']:g}), relative L2 {_error(error['relative_l2'])} (limit "
        f"{error['relative_l2_limit']:g})"
    )
    print(f"overlapped equals serial bit for bit: {'yes' if report['bit_equal'] else 'NO'}")
    print("correct" if report["correct"] else "WRONG")


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _error(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.2e}"
