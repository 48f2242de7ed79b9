"""What would be chosen for a plan on a GPU, and when its rank would do what."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from tileoverlap import _core
from tileoverlap.cli._measure import ELEMENT_BYTES
from tileoverlap.cli._parser import UsageError, count
from tileoverlap.cli._predict_arguments import (
    add_gpu_arguments,
    add_link_arguments,
    gpu_of,
    link_of,
)
from tileoverlap.cli._workload import Workload, plan_keywords
from tileoverlap.predict import Operator, choose_split, predict, predict_rank

__all__ = ["add_arguments", "explain", "lines"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--explain and what it needs to know."""
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also say which tile and how many SMs would be chosen on a GPU, and when the rank "
        "would do what, as predicted; with --inner, --gpu... and --link...",
    )
    parser.add_argument(
        "--inner", type=count(), default=2048, metavar="K", help="depth of the experts' GEMM"
    )
    add_gpu_arguments(parser)
    add_link_arguments(parser)


def explain(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Of the drawn rank, --rank; times in us."""
    if options.dtype not in ("bfloat16", "float16"):
        raise UsageError(
            f"argument --explain: GEMMs of bfloat16 and float16 were measured, not of "
            f"{options.dtype}"
        )
    gpu = gpu_of(options)
    operator = Operator(
        placement=workload.placement,
        counts=workload.counts,
        k=options.inner,
        n=options.hidden,
        gpu=gpu,
        link=link_of(options),
        element_bytes=ELEMENT_BYTES[options.dtype],
        **plan_keywords(options),
    )
    mean_rows = int(workload.counts.array.sum(dtype=np.int64)) // options.ranks
    tile_m, tile_n, group, source = _core.choose_tile(
        device=gpu.device,
        capability=gpu.capability,
        dtype=options.dtype,
        rows=mean_rows,
        experts=max(1, -(-workload.placement.experts // options.ranks)),
        k=options.inner,
        n=options.hidden,
    )
    comm_sms = choose_split(operator, [options.rank]).comm_sms
    (found,) = predict(operator, [comm_sms], [options.rank])
    (rank,) = found.ranks
    drawn = predict_rank(operator, comm_sms, options.rank)
    pieces = drawn.pieces
    return {
        "gpu": gpu.device,
        "rates": gpu.source,
        "sms": gpu.sms,
        "chosen_tile": [tile_m, tile_n],
        "chosen_group": group,
        "tile_source": source,
        "comm_sms": comm_sms,
        "first_band_us": float(drawn.band_us.min()) if len(drawn.band_us) else None,
        "first_rows_leave_us": float(pieces["begin_us"].min()) if len(pieces) else None,
        "last_rows_ready_us": float(pieces["ready_us"].max()) if len(pieces) else None,
        "last_rows_left_us": float(pieces["end_us"].max()) if len(pieces) else None,
        "gemm_end_us": rank.gemm_end_us,
        "overlapped_us": found.overlapped_us,
        "serial_us": found.serial_us,
        "gemm_us": rank.gemm_us,
        "copy_us": rank.copy_us,
    }


def lines(explained: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """The same as text."""
    chosen = explained["chosen_tile"]
    here = [options.tile_m, options.tile_n]
    tile = f"{chosen[0]} x {chosen[1]}, groups of {explained['chosen_group']}"
    if chosen != here or explained["chosen_group"] != options.group:
        tile += f" (this plan: {here[0]} x {here[1]}, groups of {options.group})"
    moments = [
        ("first_band_us", "the first band is done"),
        ("first_rows_leave_us", "the first rows leave"),
        ("last_rows_ready_us", "the last rows to be sent are ready"),
        ("last_rows_left_us", "the last rows have left"),
        ("gemm_end_us", "the last tile is done"),
        ("overlapped_us", "the operator ends"),
    ]
    known = [(explained[name], text) for name, text in moments if explained[name] is not None]
    return [
        f"on {explained['gpu']} ({explained['sms']} SMs), predicted with rates "
        f"{explained['rates']}:",
        f"  tile: {tile}; {explained['tile_source']}",
        f"  SMs that ship rows: {explained['comm_sms']}",
        *(f"  {us:9.1f} us  {text}" for us, text in sorted(known, key=lambda moment: moment[0])),
        f"  {explained['serial_us']:9.1f} us  one after the other: GEMM "
        f"{explained['gemm_us']:.1f}, return {explained['copy_us']:.1f}",
    ]
