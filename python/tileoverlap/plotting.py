"""Plans as pictures. Needs matplotlib (extra "plot"), imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

from tileoverlap.errors import InvalidArgument
from tileoverlap.plan import Plan

__all__ = ["FORMATS", "check_format", "draw_plan"]

FORMATS = ("png", "svg", "pdf")

_PADDING_COLOUR = "#dddddd"
# What can still be told apart, and drawn in seconds.
_MOST_EXPERTS = 64
_MOST_RUNS = 4096
_MOST_SEGMENTS = 500
_MOST_NAMES = 36


def check_format(path: str) -> str:
    """The picture format that `path` asks for. Raises InvalidArgument for another, and where
    matplotlib is missing."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise InvalidArgument(
            f"a picture must end in .{', .'.join(FORMATS)}, got '{Path(path).name}'"
        )
    _matplotlib()
    return suffix


def draw_plan(plan: Plan, stream: IO[bytes], image_format: str) -> None:
    """Draws row layout, tile order and segments, one above the other.

    Args:
        plan: whose.
        stream: takes the image.
        image_format: one of FORMATS.
    """
    figure_class, patch = _matplotlib()
    figure = figure_class(figsize=(11, 12), layout="constrained")
    rows, order, segments = figure.subplots(3, 1, height_ratios=[2, 1, 1])
    colours = [_colour(owner, plan.world) for owner in range(plan.world)]
    figure.suptitle(
        f"rank {plan.rank} of {plan.world}: {plan.layout}, tiles {plan.tile[0]} x {plan.tile[1]}, "
        f"{plan.valid_rows} valid rows, {plan.bands} bands"
    )
    _draw_rows(rows, plan, colours)
    _draw_order(order, plan, colours)
    _draw_segments(segments, plan, colours)
    named = colours[:_MOST_NAMES]
    handles = [patch(color=colour, label=f"rank {owner}") for owner, colour in enumerate(named)]
    handles.append(patch(color=_PADDING_COLOUR, label="nobody's"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(9, len(handles)),
        title="owner of the rows",
    )
    figure.savefig(stream, format=image_format, dpi=120)


def _draw_rows(axes: Any, plan: Plan, colours: list[Any]) -> None:
    experts = plan.experts[: max(1, min(_MOST_EXPERTS, _MOST_RUNS // plan.world))]
    tile_m = plan.tile[0]
    for line, expert in enumerate(experts):
        width = int(expert["bands"]) * tile_m
        axes.barh(line, width, height=0.8, color=_PADDING_COLOUR)
        runs = plan.runs[line][plan.runs[line]["row_count"] > 0]
        axes.barh(
            [line] * len(runs),
            runs["row_count"],
            left=runs["row_begin"] - expert["row_begin"],
            height=0.8,
            color=[colours[owner] for owner in runs["owner"]],
        )
        borders = np.arange(int(expert["bands"]) + 1) * tile_m
        axes.vlines(borders, line - 0.4, line + 0.4, color="black", linewidth=0.5)
    axes.set_title("row layout: one line an expert, black lines between bands")
    axes.set_xlabel("row of the expert")
    axes.set_ylabel("expert")
    axes.set_yticks(range(len(experts)), [str(expert["expert"]) for expert in experts])
    axes.tick_params(axis="y", labelsize=6 if len(experts) > 20 else 9)
    axes.invert_yaxis()
    if len(plan.experts) > len(experts):
        axes.set_title(f"row layout: the first {len(experts)} of {len(plan.experts)} experts")


def _draw_order(axes: Any, plan: Plan, colours: list[Any]) -> None:
    order = plan.order
    remote_end = {
        int(e["expert"]): int(e["first_band"]) + int(e["remote_bands"]) for e in plan.experts
    }
    remote = np.array(
        [int(entry["band"]) < remote_end[int(entry["expert"])] for entry in order], bool
    )
    positions = np.arange(len(order))
    for mask, marker, colour, label in (
        (remote, "s", "black", "holds a remote row"),
        (~remote, "o", colours[plan.rank], "purely local"),
    ):
        axes.scatter(
            positions[mask], order["band"][mask], s=9, marker=marker, color=colour, label=label
        )
    begins = np.unique(order["group_begin"]) - 0.5
    whole_height = axes.get_xaxis_transform()
    axes.vlines(begins, 0, 1, transform=whole_height, color="black", linewidth=0.3)
    axes.set_title("tile order: bands by position, lines between groups")
    axes.set_xlabel("position")
    axes.set_ylabel("band")
    if len(order):
        axes.legend(fontsize=8)


def _draw_segments(axes: Any, plan: Plan, colours: list[Any]) -> None:
    position = np.zeros(max(plan.bands, 1), np.int64)
    position[plan.order["band"]] = np.arange(plan.bands)
    shown = plan.segments[:_MOST_SEGMENTS]
    for number, segment in enumerate(shown):
        last = position[segment["first_band"] : segment["last_band"] + 1].max() + 1
        axes.barh(
            number, int(segment["row_count"]), left=0, height=0.9, color=colours[segment["peer"]]
        )
        if len(shown) <= 40:
            axes.text(0, number, f" after {last} bands", va="center", fontsize=6)
    which = "segments" if len(shown) == len(plan.segments) else f"the first {len(shown)} segments"
    axes.set_title(f"{which}, in the order in which they leave")
    axes.set_xlabel("rows")
    axes.set_ylabel("segment")
    axes.invert_yaxis()


def _colour(owner: int, world: int) -> Any:
    from matplotlib import colormaps

    return (
        colormaps["tab10"](owner % 10)
        if world <= 10
        else colormaps["viridis"](owner / max(world - 1, 1))
    )


def _matplotlib() -> tuple[Any, Any]:
    """(Figure, Patch); a Figure made this way needs no display and no global state."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise InvalidArgument("pictures need matplotlib: pip install tileoverlap[plot]") from error
    return Figure, Patch
