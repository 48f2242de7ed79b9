"""What `tileoverlap run` says: as one dict for JSON, and as text."""

from __future__ import annotations

from typing import Any

from tileoverlap import __version__
from tileoverlap.cli._measure import ELEMENT_BYTES, Case
from tileoverlap.cli._measured import Measured
from tileoverlap.cli._output import finite, size_text
from tileoverlap.cli._workload import Workload
from tileoverlap.plan import Plan
from tileoverlap.reference import TOLERANCES

__all__ = ["make_report", "print_report"]


def make_report(case: Case, measured: Measured, plans: list[Plan]) -> dict[str, Any]:
    limits = TOLERANCES[case.dtype]
    comparison = measured.comparison
    timeline_ratio, wall_ratio = measured.overlap_ratios()
    threads = measured.facts["threads"]
    if threads is not None and threads["in_all"] > threads["cores"]:
        # The serial run's GEMM then waits for other ranks' threads too: not the GEMM alone.
        wall_ratio = None
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
        **measured.facts,
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
        "device": case.machine.device,
        "transport": case.machine.transport,
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
        **case.machine.options,
        "iterations": case.iterations,
        "seed": workload.seed,
    }


def _rank_report(case: Case, plan: Plan) -> dict[str, Any]:
    element = ELEMENT_BYTES[case.dtype]
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


def print_report(report: dict[str, Any]) -> None:
    options, times, error = report["options"], report["times_ms"], report["error"]
    tokens, gpu = sorted(set(options["tokens"])), report["gpu"]
    where = "the cpu" if gpu is None else f"cuda:{gpu['number']}"
    between = "" if options["transport"] == "in_process" else ", one a process"
    print(
        f"{options['ranks']} ranks on {where}{between}, {options['experts']} experts, "
        f"{'..'.join(map(str, tokens[:: max(1, len(tokens) - 1)]))} tokens a rank, "
        f"top-{options['top_k']}, "
        f"{options['routing']} routing"
    )
    print(
        f"hidden {options['hidden']}, inner {options['inner']}, {options['expert']} experts, "
        f"{options['dtype']}, "
        f"{options['layout']} layout, tiles {options['tile'][0]} x {options['tile'][1]}"
    )
    if gpu is not None:
        returned = (
            "whose GEMM stores rows at their owners"
            if gpu["transfer"] == "store"
            else f"{gpu['comm_sms_a_rank']} of them ship rows"
        )
        print(
            f"{gpu['name']}, {gpu['sms']} SMs, of these {gpu['sms_a_rank']} a rank, {returned}; "
            f"kernel {gpu['kernel']}"
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
    elif threads is not None and threads["in_all"] > threads["cores"]:
        print(
            f"  {threads['in_all']} threads share {threads['cores']} cores: wall time says "
            "nothing, the timeline that it works, not what it gains"
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
