"""Predictions as pictures. Needs matplotlib (extra "plot"), imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import IO, Any

import numpy as np

from tileoverlap.predict import PredictedRank, Prediction

__all__ = ["draw_prediction"]


def draw_prediction(
    found: Sequence[Prediction],
    best: Prediction,
    rank: int,
    drawn: PredictedRank,
    stream: IO[bytes],
    image_format: str,
) -> None:
    """Draws times by SMs that ship, and below what one rank has done by when.

    Args:
        found: by number of SMs.
        best: of these.
        rank: the one of `drawn`, which is predict_rank of it with best.comm_sms.
        stream: takes the image.
        image_format: one of plotting.FORMATS.
    """
    figure_module: Any = import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(10, 9), layout="constrained")
    by_sms, in_time = figure.subplots(2, 1)
    _draw_splits(by_sms, found, best)
    _draw_rank(in_time, rank, best, drawn)
    figure.savefig(stream, format=image_format, dpi=120)


def _draw_splits(axes: Any, found: Sequence[Prediction], best: Prediction) -> None:
    sms = [split.comm_sms for split in found]
    for name, label in (
        ("gemm_us", "GEMM alone, on all SMs"),
        ("copy_us", "return alone"),
        ("serial_us", "one after the other"),
        ("overlapped_us", "overlapped"),
    ):
        axes.plot(sms, [getattr(split, name) for split in found], marker="o", label=label)
    axes.plot([best.comm_sms], [best.overlapped_us], "k*", markersize=14, label="best")
    axes.set_ylim(bottom=0)
    axes.set_title("predicted times by SMs that ship rows")
    axes.set_xlabel("SMs that ship")
    axes.set_ylabel("us")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_rank(axes: Any, rank: int, best: Prediction, drawn: PredictedRank) -> None:
    bands, pieces = drawn.band_us, drawn.pieces
    total = max(int(pieces["bytes"].sum()), 1)
    axes.step(
        np.sort(bands), np.arange(1, len(bands) + 1) / max(len(bands), 1), label="bands computed"
    )
    for name, label in (("ready_us", "rows ready"), ("end_us", "rows sent")):
        order = np.argsort(pieces[name])
        axes.step(
            pieces[name][order],
            np.cumsum(pieces["bytes"][order]) / total,
            label=label,
            where="post",
        )
    axes.set_title(f"rank {rank} with {best.comm_sms} SMs that ship: what is done by when")
    axes.set_xlabel("us")
    axes.set_ylabel("part of all")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend()
