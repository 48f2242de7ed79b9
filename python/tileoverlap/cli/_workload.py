"""The arguments that say what is routed where, shared by plan and run."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

from tileoverlap._dlpack import TensorLike
from tileoverlap.cli._output import size_text
from tileoverlap.cli._parser import UsageError, choice, count
from tileoverlap.cli.info import memory_bytes
from tileoverlap.counts import RouteCounts, count_routes
from tileoverlap.placement import Placement
from tileoverlap.plan import LAYOUTS
from tileoverlap.routing import MODES, Routed, draw_counts, route
from tileoverlap.trace import load_trace, quick_trace_path

__all__ = [
    "CountedRouting",
    "Workload",
    "add_plan_arguments",
    "add_routing_arguments",
    "load_counts",
    "load_workload",
]

QUICK = "quick"
_DEFAULT_EXPERTS = 64
_DEFAULT_TOP_K = 6
_DEFAULT_TOKENS = 512
DEFAULT_RANKS = 4
_MOST_RANKS = 4096
_MOST_EXPERTS = 65536


class Workload(NamedTuple):
    """Who goes where."""

    placement: Placement
    routed: list[Routed]
    counts: RouteCounts
    routing: str
    top_k: int
    seed: int


class CountedRouting(NamedTuple):
    """How many copies go where, without the tokens."""

    placement: Placement
    counts: RouteCounts
    tokens: int
    """On a rank; of a trace the most on any."""
    top_k: int


def add_routing_arguments(
    parser: argparse.ArgumentParser,
    default_routing: str,
    default_ranks: int | None = DEFAULT_RANKS,
    about_ranks: str = "ranks",
) -> None:
    """--ranks --experts --top-k --tokens --routing --trace-layer --seed"""
    parser.add_argument(
        "--ranks",
        type=count(high=_MOST_RANKS),
        default=default_ranks,
        metavar="W",
        help=about_ranks,
    )
    parser.add_argument(
        "--experts",
        type=count(high=_MOST_EXPERTS),
        metavar="E",
        help=f"experts of all ranks, {_DEFAULT_EXPERTS} unless given; need not divide by the ranks",
    )
    parser.add_argument(
        "--top-k",
        type=count(high=1024),
        metavar="K",
        help=f"copies of a token; unless given the columns of a trace, else {_DEFAULT_TOP_K}",
    )
    parser.add_argument(
        "--tokens",
        type=count(0),
        metavar="T",
        help=f"tokens on each rank; unless given {_DEFAULT_TOKENS}, or all of a shorter trace",
    )
    parser.add_argument(
        "--routing",
        default=default_routing,
        metavar="MODE",
        help=f"{', '.join(MODES)}, {QUICK} (the small simulated trace that comes with the "
        "package), or an npz file with keys <name>/layerNN/ids [T, k] and, where known, "
        "<name>/layerNN/weights",
    )
    parser.add_argument(
        "--trace-layer",
        type=count(0),
        metavar="NN",
        help="layer of the trace; not needed where it holds one",
    )
    parser.add_argument(
        "--seed", type=count(0, 2**63 - 1), default=0, metavar="N", help="of everything random"
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """--layout --tile-m --tile-n --bands-per-segment --group"""
    parser.add_argument(
        "--layout", type=choice(LAYOUTS), default="compact", metavar="L", help=" or ".join(LAYOUTS)
    )
    parser.add_argument(
        "--tile-m", type=count(), default=128, metavar="ROWS", help="rows of an output tile"
    )
    parser.add_argument(
        "--tile-n", type=count(), default=128, metavar="COLS", help="columns of an output tile"
    )
    parser.add_argument(
        "--bands-per-segment", type=count(), default=1, metavar="N", help="bands sent in one go"
    )
    parser.add_argument(
        "--group",
        type=count(),
        default=8,
        metavar="N",
        help="most bands whose tiles are interleaved",
    )


def plan_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """What add_plan_arguments read, as make_plan takes it."""
    return {
        "tile": (options.tile_m, options.tile_n),
        "layout": options.layout,
        "bands_per_segment": options.bands_per_segment,
        "group": options.group,
    }


def load_workload(options: argparse.Namespace, experts: int | None = None) -> Workload:
    """Routes the tokens. Raises UsageError or InvalidArgument."""
    total = _experts_of(options, experts)
    placement = Placement.even(world=options.ranks, experts=total)
    if options.routing in MODES:
        routed = _simulated(options, placement)
    else:
        routed = _recorded(options, total)
    ids: list[TensorLike] = [part.ids for part in routed]
    return Workload(
        placement,
        routed,
        count_routes(placement, ids),
        options.routing,
        routed[0].ids.shape[1],
        options.seed,
    )


def load_counts(options: argparse.Namespace, experts: int | None = None) -> CountedRouting:
    """As load_workload, for any number of ranks: no token is drawn where a mode is simulated."""
    if options.routing not in MODES:
        workload = load_workload(options, experts)
        tokens = max(len(part.ids) for part in workload.routed)
        return CountedRouting(workload.placement, workload.counts, tokens, workload.top_k)
    total = _experts_of(options, experts)
    _check_no_layer(options)
    tokens = _DEFAULT_TOKENS if options.tokens is None else options.tokens
    top_k = _DEFAULT_TOP_K if options.top_k is None else options.top_k
    # The matrix as drawn, in numpy, and in the library.
    check_memory(24 * options.ranks * total, f"the counts of {options.ranks} ranks")
    placement = Placement.even(world=options.ranks, experts=total)
    counts = draw_counts(
        options.routing, placement=placement, tokens=tokens, top_k=top_k, seed=options.seed
    )
    return CountedRouting(placement, counts, tokens, top_k)


def _experts_of(options: argparse.Namespace, experts: int | None) -> int:
    total: int = experts or options.experts or _DEFAULT_EXPERTS
    if total > _MOST_EXPERTS:
        raise UsageError(f"{total} experts are too many, at most {_MOST_EXPERTS} are planned")
    return total


def _check_no_layer(options: argparse.Namespace) -> None:
    if options.trace_layer is not None:
        raise UsageError(f"argument --trace-layer: {options.routing} is no trace and has no layers")


def check_memory(need: int, what: str) -> None:
    """Refuses what this machine cannot hold before anything is allocated: it would be killed."""
    have = memory_bytes()
    if have is not None and need > have:
        raise UsageError(
            f"{what} need {size_text(need)} of memory, this machine has {size_text(have)}"
        )


def _simulated(options: argparse.Namespace, placement: Placement) -> list[Routed]:
    _check_no_layer(options)
    tokens = _DEFAULT_TOKENS if options.tokens is None else options.tokens
    top_k = _DEFAULT_TOP_K if options.top_k is None else options.top_k
    # Ids and weights of all ranks; while one rank draws, a few float64 for each expert or slot.
    need = 8 * options.ranks * tokens * top_k + 40 * tokens * max(top_k, placement.experts)
    check_memory(need, f"the choices of {options.ranks} ranks of {tokens} tokens")
    return route(
        options.routing, placement=placement, tokens=tokens, top_k=top_k, seed=options.seed
    )


def _recorded(options: argparse.Namespace, experts: int) -> list[Routed]:
    path = str(quick_trace_path()) if options.routing == QUICK else options.routing
    if options.routing != QUICK and not path.endswith(".npz") and not os.path.exists(path):
        raise UsageError(
            f"argument --routing: must be {', '.join(MODES)}, {QUICK} or an npz file, got "
            f"'{options.routing}'"
        )
    routed = load_trace(
        path,
        ranks=options.ranks,
        experts=experts,
        layer=options.trace_layer,
        tokens=options.tokens,
        top_k=options.top_k,
    )
    if options.tokens is None:
        return [
            Routed(part.ids[:_DEFAULT_TOKENS], part.weights[:_DEFAULT_TOKENS]) for part in routed
        ]
    return routed
