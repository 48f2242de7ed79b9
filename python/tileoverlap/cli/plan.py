"""tileoverlap plan: draws where rows lie, in which order tiles are computed, and what is sent
when."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap import plotting
from tileoverlap.cli import _draw, _explain
from tileoverlap.cli._measure import ELEMENT_BYTES
from tileoverlap.cli._output import OutputFile, print_json
from tileoverlap.cli._parser import UsageError, choice, count
from tileoverlap.cli._workload import (
    Workload,
    add_plan_arguments,
    add_routing_arguments,
    check_memory,
    load_workload,
    plan_keywords,
)
from tileoverlap.executor import DTYPES
from tileoverlap.plan import LAYOUTS, Plan, make_plan, tile_arrays
from tileoverlap.progress import Progress

__all__ = ["add_parser"]

Ratios = dict[str, dict[str, float | None]]
"""Rows for each valid row, by layout and by what is counted."""


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "plan",
        help="draw the layout, tile order and segments of a plan",
        description="Draws one rank's plan as text, and as a picture, and says how many GEMM rows "
        "each layout needs.",
    )
    add_routing_arguments(parser, default_routing="balanced")
    parser.add_argument(
        "--experts-per-rank", type=count(), metavar="E", help="instead of --experts"
    )
    parser.add_argument(
        "--hidden", type=count(), default=4096, metavar="N", help="elements of a returned row"
    )
    parser.add_argument(
        "--dtype",
        type=choice(DTYPES),
        default="bfloat16",
        metavar="D",
        help=" or ".join(DTYPES) + ", for the bytes",
    )
    add_plan_arguments(parser)
    parser.add_argument("--rank", type=count(0), default=0, metavar="R", help="whose plan is drawn")
    parser.add_argument(
        "--limit", type=count(), default=12, metavar="N", help="most lines of each part"
    )
    parser.add_argument("--all", action="store_true", help="all lines of each part")
    parser.add_argument(
        "--tile-arrays", action="store_true", help="list the paper's arrays by tile id, too"
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="draw into this file (.png, .svg or .pdf; needs matplotlib)",
    )
    _explain.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    if options.experts is not None and options.experts_per_rank is not None:
        raise UsageError("argument --experts-per-rank: not together with --experts")
    if options.rank >= options.ranks:
        raise UsageError(
            f"argument --rank: must be below --ranks {options.ranks}, got {options.rank}"
        )
    if options.picture is not None:
        plotting.check_format(options.picture)
    experts = options.experts_per_rank * options.ranks if options.experts_per_rank else None
    workload = load_workload(options, experts)
    drawn = _make(workload, options, options.layout, options.rank)
    if options.tile_arrays:
        # One entry a tile and owner; as text and JSON a hundred bytes for each column.
        entries = (drawn.bands + drawn.runs.size) * drawn.tiles_n
        check_memory(700 * entries, f"{entries} tile array entries")
    explained = _explain.explain(workload, options) if options.explain else None
    with Progress(len(LAYOUTS) * options.ranks, "plans") as progress:
        ratios = {layout: _ratios(workload, options, layout, progress) for layout in LAYOUTS}
    with ExitStack() as stack:
        if options.picture is not None:
            picture = stack.enter_context(OutputFile(options.picture, "the picture"))
            plotting.draw_plan(drawn, picture.stream, plotting.check_format(options.picture))
            picture.commit()
        if options.json:
            result = _as_json(drawn, ratios, workload, options)
            print_json(result if explained is None else {**result, "explained": explained})
        else:
            _print(drawn, ratios, workload, options)
            if explained is not None:
                print()
                print("\n".join(_explain.lines(explained, options)))
    return 0


def _make(workload: Workload, options: argparse.Namespace, layout: str, rank: int) -> Plan:
    keywords = {**plan_keywords(options), "layout": layout}
    return make_plan(workload.placement, rank, workload.counts, n=options.hidden, **keywords)


def _ratios(
    workload: Workload, options: argparse.Namespace, layout: str, progress: Progress
) -> dict[str, float | None]:
    """Rows for each valid row, of all ranks and of the drawn one; None where there is none."""
    total, own = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for rank in range(options.ranks):
        plan = _make(workload, options, layout, rank)
        rows = np.array([plan.gemm_rows, plan.rows, plan.valid_rows])
        total += rows
        if rank == options.rank:
            own = rows
        progress.step()
    gemm, tiles = _per_valid_row(total)
    own_gemm, own_tiles = _per_valid_row(own)
    return {
        "gemm_rows_per_valid_row": gemm,
        "tile_rows_per_valid_row": tiles,
        "rank_gemm_rows_per_valid_row": own_gemm,
        "rank_tile_rows_per_valid_row": own_tiles,
    }


def _per_valid_row(rows: npt.NDArray[np.int64]) -> tuple[float | None, float | None]:
    gemm, tiles, valid = rows.tolist()
    return (gemm / valid, tiles / valid) if valid else (None, None)


def _as_json(
    plan: Plan,
    ratios: Ratios,
    workload: Workload,
    options: argparse.Namespace,
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "command": "plan",
        "ranks": plan.world,
        "experts": workload.placement.experts,
        "expert_begin": list(workload.placement.expert_begin),
        "top_k": workload.top_k,
        "tokens": [len(part.ids) for part in workload.routed],
        "routing": workload.routing,
        "seed": workload.seed,
        "rank": plan.rank,
        "n": plan.n,
        "tile": list(plan.tile),
        "layout": plan.layout,
        "bands_per_segment": plan.bands_per_segment,
        "group": plan.group,
        "valid_rows": plan.valid_rows,
        "gemm_rows": plan.gemm_rows,
        "rows": plan.rows,
        "bands": plan.bands,
        "tiles_n": plan.tiles_n,
        "staging_rows": plan.staging_rows,
        "layouts": ratios,
        "expert_rows": _records(plan.experts),
        "runs": _records(plan.runs.reshape(-1)),
        "order": _records(plan.order),
        "segments": _records(plan.segments),
    }
    if options.tile_arrays:
        result["tile_arrays"] = {
            name: column.tolist() for name, column in tile_arrays(plan).items()
        }
    return result


def _records(array: Any) -> list[dict[str, int]]:
    return [dict(zip(array.dtype.names, record, strict=True)) for record in array.tolist()]


def _print(
    plan: Plan,
    ratios: Ratios,
    workload: Workload,
    options: argparse.Namespace,
) -> None:
    limit = sys.maxsize if options.all else options.limit
    row_bytes = plan.n * ELEMENT_BYTES[options.dtype]
    tokens = sorted({len(part.ids) for part in workload.routed})
    print(
        f"{plan.world} ranks, {workload.placement.experts} experts, "
        f"{'..'.join(map(str, tokens[:: max(1, len(tokens) - 1)]))} "
        f"tokens a rank, top-{workload.top_k}, {workload.routing} routing"
    )
    print(
        f"rank {plan.rank} of {plan.world}: {plan.layout} layout, tiles {plan.tile[0]} x "
        f"{plan.tile[1]}, "
        f"{plan.bands_per_segment} band(s) a segment, groups of up to {plan.group}"
    )
    print(
        f"rows: {plan.valid_rows} valid, {plan.gemm_rows} in the GEMM, {plan.rows} in whole tiles; "
        f"{plan.bands} bands x {plan.tiles_n} column tiles = {plan.tiles} tiles; "
        f"staging {plan.staging_rows} rows of {row_bytes} bytes"
    )
    parts = [
        _draw.ratio_table(ratios, plan.layout, plan.rank),
        _draw.layout(plan, limit),
        _draw.schedule(plan, limit),
        _draw.segments(plan, limit, row_bytes),
    ]
    if options.tile_arrays:
        parts.append(_draw.arrays(tile_arrays(plan), limit))
    for part in parts:
        print()
        print("\n".join(part))
