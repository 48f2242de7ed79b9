"""tileoverlap simulate: how long the operator would take on W ranks that need not exist."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np

from tileoverlap.cli._measure import ELEMENT_BYTES
from tileoverlap.cli._output import OutputFile, print_json, size_text
from tileoverlap.cli._parser import UsageError, choice, count
from tileoverlap.cli._predict_arguments import (
    add_gpu_arguments,
    add_link_arguments,
    gpu_of,
    link_of,
)
from tileoverlap.cli._workload import (
    add_plan_arguments,
    add_routing_arguments,
    load_counts,
    plan_keywords,
)
from tileoverlap.plotting import check_format
from tileoverlap.predict import (
    AS_GOOD,
    Operator,
    Prediction,
    choose_split,
    predict,
    predict_rank,
)
from tileoverlap.predict_plot import draw_prediction
from tileoverlap.progress import Progress

__all__ = ["add_parser"]

_AROUND = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of SMs that are shown beside the best."""
_DTYPES = ("bfloat16", "float16")


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "simulate",
        help="predict the operator's time on many ranks",
        description="Predicts GEMM, return and overlapped operator tile by tile and piece by "
        "piece, from rates that were measured on one GPU and the links that you name. Nothing is "
        "run: ranks and GPUs need not exist.",
    )
    add_routing_arguments(parser, default_routing="balanced")
    parser.add_argument(
        "--experts-per-rank", type=count(), metavar="E", help="instead of --experts"
    )
    parser.add_argument(
        "--hidden", type=count(), default=4096, metavar="N", help="elements of a returned row"
    )
    parser.add_argument(
        "--inner", type=count(), default=2048, metavar="K", help="depth of the experts' GEMM"
    )
    parser.add_argument(
        "--dtype", type=choice(_DTYPES), default="bfloat16", metavar="D", help=" or ".join(_DTYPES)
    )
    add_plan_arguments(parser)
    add_gpu_arguments(parser)
    add_link_arguments(parser)
    parser.add_argument(
        "--sms", type=count(2), metavar="S", help="of each rank; unless given all of its GPU"
    )
    parser.add_argument(
        "--comm-sms",
        metavar="C,C,...",
        help="of these, SMs that ship rows; unless given the best number, beside others",
    )
    parser.add_argument(
        "--picture",
        metavar="FILE",
        help="draw times by SMs, and the busiest rank's call (.png, .svg or .pdf; needs "
        "matplotlib)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_simulate)


def _simulate(options: argparse.Namespace) -> int:
    if options.experts is not None and options.experts_per_rank is not None:
        raise UsageError("argument --experts-per-rank: not together with --experts")
    image_format = check_format(options.picture) if options.picture is not None else None
    experts = options.experts_per_rank * options.ranks if options.experts_per_rank else None
    asked = _asked(options.comm_sms)
    routing = load_counts(options, experts)
    operator = Operator(
        placement=routing.placement,
        counts=routing.counts,
        k=options.inner,
        n=options.hidden,
        gpu=gpu_of(options),
        link=link_of(options),
        sms=options.sms or 0,
        element_bytes=ELEMENT_BYTES[options.dtype],
        **plan_keywords(options),
    )
    found = _predict(operator, asked)
    most = AS_GOOD * min(split.overlapped_us for split in found)
    best = next(split for split in found if split.overlapped_us <= most)
    busiest = max(best.ranks, key=lambda rank: (rank.gemm_end_us, -rank.rank)).rank
    with ExitStack() as stack:
        if image_format is not None:
            picture = stack.enter_context(OutputFile(options.picture, "the picture"))
            drawn = predict_rank(operator, best.comm_sms, busiest)
            draw_prediction(found, best, busiest, drawn, picture.stream, image_format)
            picture.commit()
        if options.json:
            print_json(_as_json(operator, options, routing, found, best))
        else:
            _print(operator, options, routing, found, best, busiest)
    return 0


def _asked(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        asked = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"argument --comm-sms: must be numbers, got '{text}'") from None
    return asked


def _predict(operator: Operator, asked: list[int] | None) -> list[Prediction]:
    """By number of SMs, ascending."""
    if asked is None:
        # The search looks at many numbers: at the busiest rank alone, which is what decides.
        per_rank = np.add.reduceat(
            np.append(operator.counts.array.sum(axis=0), 0), operator.placement.expert_begin[:-1]
        )
        chosen = choose_split(operator, [int(np.argmax(per_rank))]).comm_sms
        sms = operator.sms or operator.gpu.sms
        asked = sorted({chosen, *(c for c in _AROUND if c < sms and c <= max(24, 2 * chosen))})
    found = []
    with Progress(len(asked), "numbers of SMs") as progress:
        for comm_sms in asked:
            found += predict(operator, [comm_sms])
            progress.step()
    return found


def _print(
    operator: Operator,
    options: argparse.Namespace,
    routing: Any,
    found: list[Prediction],
    best: Prediction,
    busiest: int,
) -> None:
    placement, gpu, link = operator.placement, operator.gpu, operator.link
    print(
        f"{placement.world} ranks, {placement.experts} experts, {routing.tokens} tokens a rank, "
        f"top-{routing.top_k}, {options.routing} routing; K = {operator.k}, N = {operator.n}, "
        f"{options.dtype}"
    )
    print(
        f"each rank: {operator.sms or gpu.sms} SMs of {gpu.device} (rates {gpu.source}), tiles "
        f"{operator.tile[0]} x {operator.tile[1]}, {operator.layout}"
    )
    inside = f"{link.gbs:g} GB/s" if link.gbs else "as fast as SMs ship"
    if link.domain:
        print(
            f"links: {inside} in domains of {link.domain} ranks, {link.network_gbs:g} GB/s between "
            "them"
        )
    else:
        print(f"links: {inside} between any two ranks")
    rows = _rows_of(operator)
    sent = [rank.shipped_bytes for rank in best.ranks]
    print(
        f"rows of a rank: {rows.min()}..{rows.max()}, mean {rows.mean():.0f}; returned by a rank: "
        f"{size_text(min(sent))}..{size_text(max(sent))}"
    )
    print()
    print(
        "  SMs that ship      GEMM    return    serial  overlapped    behind  over serial  "
        "overlap  of the bound"
    )
    for split in found:
        mark = "*" if split is best else " "
        over = split.serial_us / split.overlapped_us if split.overlapped_us else 1.0
        print(
            f"{mark} {split.comm_sms:13d} {split.gemm_us:9.0f} {split.copy_us:9.0f} "
            f"{split.serial_us:9.0f} {split.overlapped_us:11.0f} {split.behind_us:9.0f} "
            f"{over:12.2f} {split.overlap:8.2f} {100 * split.reached:8.1f}% of {split.bound:.2f}"
        )
    print()
    fastest_serial = min(split.serial_us for split in found)
    if fastest_serial < best.overlapped_us:
        print(f"serial work would be faster: {fastest_serial:.0f} us")
    print(
        f"times in us; best with {best.comm_sms} SMs; the busiest rank is {busiest}, the last row "
        f"lands on rank {max(best.ranks, key=lambda rank: rank.landed_us).rank}"
    )


def _rows_of(operator: Operator) -> Any:
    placement = operator.placement
    columns = operator.counts.array.sum(axis=0, dtype=np.int64)
    return np.array([columns[list(placement.experts_of(r))].sum() for r in range(placement.world)])


def _as_json(
    operator: Operator,
    options: argparse.Namespace,
    routing: Any,
    found: list[Prediction],
    best: Prediction,
) -> dict[str, Any]:
    rows = _rows_of(operator)
    gpu = asdict(operator.gpu)
    del gpu["gemms"]
    return {
        "command": "simulate",
        "ranks": operator.placement.world,
        "experts": operator.placement.experts,
        "tokens": routing.tokens,
        "top_k": routing.top_k,
        "routing": options.routing,
        "seed": options.seed,
        "k": operator.k,
        "n": operator.n,
        "dtype": options.dtype,
        "tile": list(operator.tile),
        "layout": operator.layout,
        "bands_per_segment": operator.bands_per_segment,
        "group": operator.group,
        "sms": operator.sms or operator.gpu.sms,
        "gpu": gpu,
        "link": asdict(operator.link),
        "rows_of_rank": rows.tolist(),
        "best_comm_sms": best.comm_sms,
        "splits": [asdict(split) for split in found],
    }
