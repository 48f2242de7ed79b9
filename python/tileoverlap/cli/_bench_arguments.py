"""The arguments of tileoverlap bench, and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tileoverlap.bench.loop_back import LINKS, Choice
from tileoverlap.bench.router import check_mode
from tileoverlap.bench.shapes import Shape, find_shapes
from tileoverlap.bench.transport import find_link
from tileoverlap.cli._parser import UsageError, choice, count
from tileoverlap.cli._workload import add_plan_arguments, plan_keywords
from tileoverlap.executor import EXPERT_KINDS
from tileoverlap.routing import MODES

__all__ = [
    "LAYERS",
    "add_arguments",
    "check_arguments",
    "choice_of",
    "given_comm_sms",
    "link_of",
    "repetitions",
    "return_sms",
    "shapes_of",
]

LAYERS = ("layer", "correctness")
_OVER_LINKS = ("transport", "operator", "partition", "experts")
_ONLY_FOR = {"link": _OVER_LINKS, "expert": LAYERS, "table": ("tune",)}
_LINK_GBS = 400.0
_DTYPES = ("bfloat16", "float16")
_REPETITIONS = 50
_INPUTS = 3


def add_arguments(parser: argparse.ArgumentParser, whats: Sequence[str]) -> None:
    """All of them; `whats`: what can be measured."""
    parser.add_argument("what", type=choice(whats), metavar="WHAT", help=", ".join(whats))
    parser.add_argument(
        "--shapes",
        metavar="SHAPES",
        help="separated by semicolons: sweep (the paper's Table 2), served, words of a name such "
        "as M=16384,E=16, or ROWS,EXPERTS,K,N of one rank of four",
    )
    parser.add_argument(
        "--modes",
        default="balanced",
        metavar="MODES",
        help=f"{', '.join(MODES)}, or FILE.npz:LAYER, the first choices of a trace",
    )
    parser.add_argument("--dtype", type=choice(_DTYPES), default=_DTYPES[0], metavar="D")
    add_plan_arguments(parser)
    parser.add_argument(
        "--comm-sms",
        metavar="LIST",
        help="SMs that return rows; unless given the fewest that reach "
        f"{_LINK_GBS:.0f} GB/s by themselves, or nearly all that a slower link gives; of "
        f"{', '.join(LAYERS)}: of each rank's SMs; unless given as many as are "
        "predicted to be fastest",
    )
    parser.add_argument(
        "--link",
        type=choice(LINKS),
        metavar="LINK",
        help=f"of {', '.join(_OVER_LINKS)}: what returned rows cross: hbm, peers' memory on the "
        "same GPU (the default), or pcie, pinned memory of the host",
    )
    parser.add_argument(
        "--expert",
        type=choice(EXPERT_KINDS),
        metavar="KIND",
        help=f"of {', '.join(LAYERS)}: {', '.join(EXPERT_KINDS)}; unless given silu_gate for "
        "layer, single (the returned GEMM alone) for correctness",
    )
    parser.add_argument(
        "--repetitions",
        type=count(),
        metavar="N",
        help=f"{_REPETITIONS} unless given; of correctness: inputs, {_INPUTS} unless given",
    )
    parser.add_argument("--json", metavar="FILE", help="all figures")
    parser.add_argument(
        "--table",
        metavar="FILE",
        help="of tune: what is fastest, for src/produce/tile_table.inc",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="a picture of them (.png, .svg or .pdf); not of correctness"
    )


def check_arguments(options: argparse.Namespace) -> list[str]:
    """The router modes. Raises UsageError for what needs no GPU to be found wrong."""
    for name, whats in _ONLY_FOR.items():
        if getattr(options, name) is not None and options.what not in whats:
            raise UsageError(
                f"argument --{name}: has no meaning for {options.what}, only for {', '.join(whats)}"
            )
    if options.plot and options.what == "correctness":
        raise UsageError("argument --plot: there is no picture of correctness")
    modes: list[str] = options.modes.split(",")
    shapes = shapes_of(options, "sweep")
    for mode in modes:
        try:
            check_mode(mode, shapes)
        except ValueError as error:
            raise UsageError(f"argument --modes: {error}") from error
    given_comm_sms(options)
    return modes


def shapes_of(options: argparse.Namespace, default: str) -> list[Shape]:
    try:
        return find_shapes(options.shapes or default)
    except ValueError as error:
        raise UsageError(f"argument --shapes: {error}") from error


def choice_of(options: argparse.Namespace) -> Choice:
    return Choice(**plan_keywords(options))


def link_of(options: argparse.Namespace) -> str:
    return options.link or LINKS[0]


def repetitions(options: argparse.Namespace) -> int:
    given: int | None = options.repetitions
    if given is not None:
        return given
    return _INPUTS if options.what == "correctness" else _REPETITIONS


def given_comm_sms(options: argparse.Namespace) -> list[int]:
    """Empty where it was not given."""
    if options.comm_sms is None:
        return []
    try:
        return [count()(number) for number in options.comm_sms.split(",")]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"argument --comm-sms: {error}") from None


def return_sms(torch: Any, options: argparse.Namespace, default: Sequence[int] = ()) -> list[int]:
    """As given, else `default`, else what the link needs."""
    given = given_comm_sms(options) or list(default)
    return given or [find_link(torch, _LINK_GBS, options.dtype, link_of(options))]
