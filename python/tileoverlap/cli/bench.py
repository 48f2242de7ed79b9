"""tileoverlap bench: speeds on this GPU, beside those of others, from one run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import Any

from tileoverlap import __version__
from tileoverlap.bench import plots
from tileoverlap.bench.loop_back import Choice
from tileoverlap.bench.operator import measure_operator
from tileoverlap.bench.producer import measure_producer, summarise
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.tile_table import table_of
from tileoverlap.bench.transport import SIZES, SMS, measure_transport
from tileoverlap.cli._bench_arguments import (
    LAYERS,
    add_arguments,
    check_arguments,
    choice_of,
    link_of,
    repetitions,
    return_sms,
    shapes_of,
)
from tileoverlap.cli._bench_layers import run_correctness, run_layer
from tileoverlap.cli._cuda import ask_for_queues
from tileoverlap.cli._output import OutputFile
from tileoverlap.cli._parser import UsageError
from tileoverlap.cuda_executor import cuda_devices, why_no_cuda_device
from tileoverlap.plan import LAYOUTS
from tileoverlap.progress import Progress

__all__ = ["add_parser"]

Row = dict[str, Any]
_PARTITION_SMS = tuple(range(2, 25, 2))


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "bench",
        help="measure speeds on this GPU",
        description="Measures on one GPU, in one run, what is compared. producer: the GEMM with "
        "and without flags, cuBLAS, grouped_mm, DeepGEMM where it is installed. transport: the "
        "return alone by SMs and size. operator: GEMM and return beside serial and chunked "
        "systems. partition: the operator by SMs given to the return. experts: the operator by "
        "number of experts, both layouts. tune: which tile and group is fastest for each shape. "
        "layer: the whole layer of W ranks that share the GPU, overlapped beside serial. "
        "correctness: are both equal in every bit, and how far from float64. In all but the last "
        "two one rank has the whole GPU, and its peers' memory lies on the same GPU or in the "
        "host's. Needs torch.",
    )
    add_arguments(parser, tuple(_RUNS))
    parser.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    modes = check_arguments(options)
    if options.what in LAYERS:
        ask_for_queues()
    if not cuda_devices():
        raise UsageError(f"bench needs a GPU: {why_no_cuda_device()}")
    try:
        torch: Any = import_module("torch")
    except (ImportError, OSError) as error:
        raise UsageError(f"bench needs torch: {error}") from error
    if not torch.cuda.is_available():
        raise UsageError(f"torch {torch.__version__} finds no GPU")
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(OutputFile(path, f"the {name}"))
            for name, path in (
                ("figures", options.json),
                ("picture", options.plot),
                ("table", options.table),
            )
            if path is not None
        }
        image_format = plots.check_format(options.plot) if options.plot else None
        result = {
            "tileoverlap": __version__,
            "what": options.what,
            "gpu": cuda_devices()[0].name,
            "torch": torch.__version__,
            "repetitions": repetitions(options),
            **_RUNS[options.what](torch, options, modes),
        }
        if "figures" in files:
            files["figures"].stream.write(json.dumps(result, indent=1).encode() + b"\n")
            files["figures"].commit()
        if "table" in files:
            files["table"].stream.write(table_of(result["rows"], cuda_devices()[0]).encode())
            files["table"].commit()
        if "picture" in files and image_format is not None:
            plots.draw(result, files["picture"].stream, image_format)
            files["picture"].commit()
    return 0 if result.get("ok", True) else 1


def _producer(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    rows: list[Row] = []
    cases = [(shape, mode) for shape in shapes_of(options, "sweep") for mode in modes]
    with Progress(len(cases), "producer") as progress:
        for shape, mode in cases:
            rows += measure_producer(
                torch,
                shape,
                [choice_of(options)],
                mode=mode,
                dtype=options.dtype,
                repetitions=repetitions(options),
            )
            progress.step(shape.name)
            _print_producer(rows[-1])
    summary = summarise(rows)
    print("  ".join(f"{name} {value:.3f}" for name, value in summary.items()))
    return {"rows": rows, "summary": summary}


def _print_producer(row: Row) -> None:
    names = ("cublas_loop", "cublas_graph", "grouped_mm", "deep_gemm", "square")
    peers = "  ".join(
        f"{name} {row[f'{name}_tflops']:.0f}" for name in names if f"{name}_tflops" in row
    )
    ratio = (
        f"  ratio {row['to_best_peer']:.3f}  {row['other_dtype']} {row['other_tflops']:.0f}"
        if "to_best_peer" in row
        else ""
    )
    print(
        f"{row['shape']:<24} {row['mode']:<13} {row['kernel']} group {row['group']}  "
        f"flags {row['flags_tflops']:.0f}  plain {row['plain_tflops']:.0f}  "
        f"-{row['spared_sms']} SMs {row['spared_tflops']:.0f}  {peers} TFLOP/s{ratio}",
        flush=True,
    )


def _tune(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    tiles = cuda_devices()[0].tiles
    choices = [
        replace(choice_of(options), tile=tile, group=group)
        for tile in tiles
        for group in (4, 8, 16, 64)
    ]
    rows: list[Row] = []
    shapes = shapes_of(options, "sweep")
    with Progress(len(shapes), "tune") as progress:
        for shape in shapes:
            measured = measure_producer(
                torch,
                shape,
                choices,
                mode=modes[0],
                dtype=options.dtype,
                repetitions=repetitions(options),
                peers=False,
            )
            rows += measured
            progress.step(shape.name)
            best = sorted(measured, key=lambda row: float(row["flags_us"]))[:3]
            for row in best:
                _print_producer(row)
    return {"rows": rows}


def _transport(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    del modes
    rows: list[Row] = []
    with Progress(len(SIZES), "transport") as progress:
        for tokens in SIZES:
            measured = measure_transport(
                torch,
                tokens=tokens,
                sms=return_sms(torch, options, SMS),
                dtype=options.dtype,
                repetitions=repetitions(options),
                link=link_of(options),
            )
            rows += measured
            progress.step()
            rates = "  ".join(f"{row['sms']}: {row['gbs']:.0f}" for row in measured)
            print(f"{measured[0]['bytes'] / 2**20:.0f} MiB, GB/s by SMs  {rates}", flush=True)
    return {"rows": rows}


def _operators(
    torch: Any,
    options: argparse.Namespace,
    cases: Sequence[tuple[Shape, str, Choice, int]],
    *,
    bases: bool,
) -> Row:
    rows: list[Row] = []
    with Progress(len(cases), options.what) as progress:
        for shape, mode, chosen, comm_sms in cases:
            rows.append(
                measure_operator(
                    torch,
                    shape,
                    chosen,
                    comm_sms=comm_sms,
                    mode=mode,
                    dtype=options.dtype,
                    repetitions=repetitions(options),
                    bases=bases,
                    link=link_of(options),
                )
            )
            progress.step(shape.name)
            _print_operator(rows[-1])
    return {"rows": rows}


def _print_operator(row: Row) -> None:
    bases = "  ".join(
        f"{name} {row[f'{name}_us']:.0f}"
        for name in ("b0", "b0s", "b1", "b2_2", "b2_4")
        if f"{name}_us" in row
    )
    ratios = "  ".join(
        f"{name} {row[name]:.2f}"
        for name in ("over_b0", "over_b0s", "over_b1", "over_b2")
        if name in row
    )
    stored = (
        f"  stored {row['stored_us']:.0f}, in a graph {row['stored_graph_us']:.0f} us "
        f"({row['stored_gbs']:.0f} GB/s)  over_b1 {row['stored_over_b1']:.2f}  "
        f"reached {row['stored_reached']:.1%}"
        if "stored_us" in row
        else ""
    )
    print(
        f"{row['shape']:<24} {row['mode']:<13} {row['layout']:<13} {row['link']:<4} "
        f"{row['comm_sms']:>2} SMs  "
        f"gemm {row['gemm_us']:.0f}  part {row['part_us']:.0f}  copy {row['copy_us']:.0f} "
        f"({row['copy_gbs']:.0f} GB/s)  {bases}  ours {row['ours_us']:.0f}, in a graph "
        f"{row['ours_graph_us']:.0f} us  {ratios}  bound {row['bound']:.2f}  "
        f"reached {row['reached']:.1%}  overlap {row['overlap_timeline']:.3f}{stored}",
        flush=True,
    )


def _operator(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    link = return_sms(torch, options)
    cases = [
        (shape, mode, choice_of(options), comm_sms)
        for shape in shapes_of(options, "M=16384;M=32768,E=16")
        for mode in modes
        for comm_sms in link
    ]
    return _operators(torch, options, cases, bases=True)


def _partition(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    cases = [
        (shape, mode, choice_of(options), comm_sms)
        for shape in shapes_of(options, "M=16384,N=8192,E=16")
        for mode in modes
        for comm_sms in return_sms(torch, options, _PARTITION_SMS)
    ]
    return _operators(torch, options, cases, bases=False)


def _experts(torch: Any, options: argparse.Namespace, modes: Sequence[str]) -> Row:
    link = return_sms(torch, options)[0]
    cases = [
        (shape, mode, replace(choice_of(options), layout=layout), link)
        for shape in shapes_of(options, "M=16384,N=8192")
        for mode in modes
        for layout in LAYOUTS
    ]
    return _operators(torch, options, cases, bases=True)


_RUNS: dict[str, Callable[[Any, argparse.Namespace, Sequence[str]], Row]] = {
    "producer": _producer,
    "transport": _transport,
    "operator": _operator,
    "partition": _partition,
    "experts": _experts,
    "tune": _tune,
    "layer": run_layer,
    "correctness": run_correctness,
}
