"""tileoverlap bench layer and correctness: W ranks on one GPU."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tileoverlap.bench.layer import measure_correctness, measure_layer
from tileoverlap.bench.one_gpu import check_fits
from tileoverlap.cli._bench_arguments import choice_of, given_comm_sms, repetitions, shapes_of
from tileoverlap.cli._output import finite
from tileoverlap.cuda_executor import cuda_devices
from tileoverlap.progress import Progress
from tileoverlap.reference import TOLERANCES

__all__ = ["run_correctness", "run_layer"]

Row = dict[str, Any]


def run_layer(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    def measure(**case: Any) -> Row:
        return measure_layer(torch, **case, repetitions=repetitions(options))

    rows = _measured(options, modes, measure, _print_layer, "M=16384,N=8192", "silu_gate")
    return {"rows": rows}


def run_correctness(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    def measure(**case: Any) -> Row:
        return measure_correctness(torch, **case, inputs=repetitions(options))

    rows = _measured(options, modes, measure, _print_correctness, "sweep", "single")
    right = sum(row["ok"] for row in rows)
    print(f"{right} of {len(rows)} are right")
    return {"rows": rows, "ok": right == len(rows)}


def _measured(
    options: argparse.Namespace,
    modes: Sequence[str],
    measure: Callable[..., Row],
    show: Callable[[Row], None],
    default_shapes: str,
    default_expert: str,
) -> list[Row]:
    """A row a shape, router mode and number of SMs. Raises InvalidArgument before anything runs
    where a shape is too large."""
    shapes = shapes_of(options, default_shapes)
    kind = {"expert": options.expert or default_expert, "dtype": options.dtype}
    choice = choice_of(options)
    memory_bytes = cuda_devices()[0].memory_bytes
    for shape in shapes:
        check_fits(shape, choice, **kind, memory_bytes=memory_bytes)
    sms: Sequence[int | None] = given_comm_sms(options) or [None]
    cases = [
        {"shape": shape, "mode": mode, "comm_sms": comm_sms}
        for shape in shapes
        for mode in modes
        for comm_sms in sms
    ]
    rows: list[Row] = []
    with Progress(len(cases), options.what) as progress:
        for case in cases:
            row = measure(**case, **kind, choice=choice)
            rows.append(
                {
                    name: finite(value) if isinstance(value, float) else value
                    for name, value in row.items()
                }
            )
            progress.step(row["shape"])
            show(row)
    return rows


def _head(row: Row) -> str:
    return (
        f"{row['shape']:<24} {row['mode']:<13} {row['dtype']} {row['expert']} {row['layout']} "
        f"{row['world']} ranks of {row['sms_a_rank']} SMs, {row['comm_sms']} return"
    )


def _print_layer(row: Row) -> None:
    times = "  ".join(
        f"{name} {row[f'{name}_us']:.0f} ({row[f'{name}_p10_us']:.0f}-{row[f'{name}_p90_us']:.0f})"
        for name in ("torch_loop", "serial", "b1", "ours", "ours_graph")
    )
    ratios = "  ".join(
        f"{name} {row[name]:.2f}" for name in ("over_serial", "over_b1", "over_torch_loop")
    )
    print(f"{_head(row)}  {times} us  {ratios}  {row['best_tflops']:.0f} TFLOP/s", flush=True)


def _print_correctness(row: Row) -> None:
    limit = TOLERANCES[row["dtype"]]
    print(
        f"{_head(row)}  bits {'equal' if row['bit_equal'] else 'DIFFER'}  worst token "
        f"{row['per_token']:.2e} of {limit.per_token:.1e}  relative L2 {row['relative_l2']:.2e} of "
        f"{limit.relative_l2:.0e}  {'ok' if row['ok'] else 'WRONG'}",
        flush=True,
    )
