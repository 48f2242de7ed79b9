"""tileoverlap rates: how well predictions meet what was measured, and rates that meet it better."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tileoverlap.bench.rates import (
    Met,
    choices,
    compare,
    fit,
    fit_steps,
    measured_gemms,
    measured_operators,
    table_of,
)
from tileoverlap.cli._output import OutputFile, print_json
from tileoverlap.cli._parser import UsageError
from tileoverlap.cli._predict_arguments import add_gpu_arguments, gpu_of
from tileoverlap.predict import GpuRates
from tileoverlap.progress import Progress

__all__ = ["add_parser"]

Row = dict[str, Any]


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "rates",
        help="compare predictions with what was measured",
        description="Predicts the operators that FILES hold, as `tileoverlap bench operator`, "
        "`partition` and `experts` write them with --json, and prints by how much each prediction "
        "is off: from the GPU's rates alone, and in the row's own clock, with its own GEMM and "
        "return, each measured alone. Needs no GPU.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON of tileoverlap bench")
    add_gpu_arguments(parser)
    parser.add_argument(
        "--fit",
        action="store_true",
        help="find the rates that meet these files best; GEMM times come from those of "
        "`tileoverlap bench producer` and `tune` among them",
    )
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="write the rates that were found, src/predict/gpu_rates.inc of the next build; with "
        "--fit",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_rates)


def _rates(options: argparse.Namespace) -> int:
    if options.table is not None and not options.fit:
        raise UsageError("argument --table: only together with --fit")
    rows = [row for path in options.files for row in _rows_of(path)]
    gpu = gpu_of(options)
    with ExitStack() as stack:
        table = None
        if options.table is not None:
            table = stack.enter_context(OutputFile(options.table, "the table"))
        if options.fit:
            gpu = replace(gpu, gemms=measured_gemms(rows) or gpu.gemms)
        measured = measured_operators(rows, gpu)
        if not measured:
            raise UsageError(
                f"{', '.join(options.files)}: no row of tileoverlap bench operator, partition or "
                "experts over the GPU's own memory"
            )
        if options.fit:
            with Progress(fit_steps, "rates") as progress:
                gpu = fit(measured, gpu, progress.step)
        met = compare(measured, gpu)
        if table is not None:
            table.stream.write(table_of(gpu).encode())
            table.commit()
        if options.json:
            print_json(_as_json(met, gpu))
        else:
            _print(met, gpu)
    return 0


def _rows_of(path: str) -> list[Row]:
    try:
        content = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: is no JSON: {error}") from error
    # As bench wrote it, or with where and when it was measured around it.
    content = content.get("data", content) if isinstance(content, dict) else None
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: is not what tileoverlap bench writes, it has no rows")
    return rows


def _errors(met: list[Met]) -> dict[str, dict[str, float]]:
    found = {}
    for name in ("from_table", "in_its_clock"):
        errors = np.array([getattr(one, name) / one.row.overlapped_us - 1 for one in met])
        found[name] = {
            "mean": float(errors.mean()),
            "mean_absolute": float(np.abs(errors).mean()),
            "worst": float(np.abs(errors).max()),
        }
    return found


def _print(met: list[Met], gpu: GpuRates) -> None:
    print(f"{len(met)} operators, predicted for {gpu.device} (rates {gpu.source}); us")
    print()
    print("  measured  from the rates     in its clock    SMs  row")
    for one in met:
        us = one.row.overlapped_us
        print(
            f"{us:10.0f} {one.from_table:8.0f} {100 * (one.from_table / us - 1):+6.1f}% "
            f"{one.in_its_clock:9.0f} {100 * (one.in_its_clock / us - 1):+6.1f}% "
            f"{one.row.comm_sms:6d}  {one.row.name}"
        )
    print()
    for name, title in (("from_table", "from the rates"), ("in_its_clock", "in its clock")):
        error = _errors(met)[name]
        print(
            f"{title}: off by {100 * error['mean_absolute']:.1f} % in the mean, "
            f"{100 * error['worst']:.1f} % at worst; {100 * error['mean']:+.1f} % on balance"
        )
    _print_choices(met)


def _print_choices(met: list[Met]) -> None:
    chosen = choices(met)
    if not chosen:
        return
    print()
    print("SMs that ship, by the rates and as measured; us")
    for one in chosen:
        print(
            f"{one.comm_sms:6d} {one.us:8.0f}   best {one.best_comm_sms:4d} {one.best_us:8.0f} "
            f"{100 * (one.us / one.best_us - 1):+6.1f}%  {one.name}"
        )


def _as_json(met: list[Met], gpu: GpuRates) -> dict[str, Any]:
    return {
        "command": "rates",
        "gpu": asdict(gpu),
        "errors": _errors(met),
        "choices": [one._asdict() for one in choices(met)],
        "rows": [
            {
                "name": one.row.name,
                "comm_sms": one.row.comm_sms,
                "measured_us": one.row.overlapped_us,
                "from_table_us": one.from_table,
                "in_its_clock_us": one.in_its_clock,
            }
            for one in met
        ],
    }
