"""Where a benchmark's tokens go: a router mode, or choices that a real router made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tileoverlap.bench.shapes import Shape
from tileoverlap.placement import Placement
from tileoverlap.routing import MODES, Routed, route
from tileoverlap.trace import load_trace

__all__ = ["check_mode", "mode_name", "routing_of"]


def routing_of(shape: Shape, placement: Placement, mode: str) -> list[Routed]:
    """By rank. `mode` is one of routing.MODES, or FILE.npz or FILE.npz:LAYER: the first tokens and
    columns of a trace, as many as the shape has.

    Raises:
        InvalidArgument: the file has not so many ranks, tokens or columns, or other experts.
    """
    if mode in MODES:
        return route(mode, placement=placement, tokens=shape.tokens, top_k=shape.top_k)
    path, layer = _parsed(mode)
    return load_trace(
        path,
        ranks=shape.world,
        experts=shape.experts,
        layer=layer,
        tokens=shape.tokens,
        top_k=shape.top_k,
    )


def mode_name(mode: str) -> str:
    """For a report: a trace without its folder."""
    return mode if mode in MODES else Path(mode).name


def check_mode(mode: str, shapes: Sequence[Shape]) -> None:
    """Raises ValueError for what is no mode, and InvalidArgument where a shape does not fit."""
    if mode in MODES:
        return
    path, _ = _parsed(mode)
    if not path.endswith(".npz"):
        raise ValueError(f"'{mode}' is none of {', '.join(MODES)}, nor FILE.npz:LAYER")
    for shape in shapes:
        routing_of(shape, Placement.even(world=shape.world, experts=shape.experts), mode)


def _parsed(mode: str) -> tuple[str, int | None]:
    path, colon, layer = mode.rpartition(":")
    return (path, int(layer)) if colon and layer.isdigit() else (mode, None)
