"""Pictures of what was measured. Needs matplotlib (extra "plot")."""

from __future__ import annotations

from importlib import import_module
from typing import IO, Any

from tileoverlap.plotting import check_format

__all__ = ["check_format", "draw"]

Row = dict[str, Any]


def draw(result: Row, stream: IO[bytes], image_format: str) -> None:
    """Draws a benchmark's figures, as `tileoverlap bench --json` writes them."""
    figure_module: Any = import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    {"producer": _producer, "tune": _producer, "transport": _transport}.get(
        result["what"], _partition if result["what"] == "partition" else _operator
    )(axes, result["rows"])
    axes.set_title(f"{result['what']} on one {result['gpu']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(stream, format=image_format)


def _producer(axes: Any, rows: list[Row]) -> None:
    names = [row["shape"] for row in rows]
    for name in ("flags", "plain", "cublas_graph", "grouped_mm", "deep_gemm", "square"):
        if f"{name}_tflops" in rows[0]:
            axes.plot(names, [row.get(f"{name}_tflops") for row in rows], marker="o", label=name)
    axes.set_ylabel("TFLOP/s of valid rows")
    axes.tick_params(axis="x", rotation=90)


def _transport(axes: Any, rows: list[Row]) -> None:
    for size in sorted({row["bytes"] for row in rows}):
        part = [row for row in rows if row["bytes"] == size]
        axes.plot(
            [row["sms"] for row in part],
            [row["gbs"] for row in part],
            marker="o",
            label=f"{size / 2**20:.0f} MiB",
        )
    axes.set_xlabel("SMs that return rows")
    axes.set_ylabel("GB/s")


def _partition(axes: Any, rows: list[Row]) -> None:
    for name in ("part", "copy", "ours"):
        axes.plot(
            [row["comm_sms"] for row in rows],
            [row[f"{name}_us"] for row in rows],
            marker="o",
            label=name,
        )
    axes.set_xlabel("SMs that return rows")
    axes.set_ylabel("us")


def _operator(axes: Any, rows: list[Row]) -> None:
    names = [f"{row['shape']}\n{row['mode']}, {row['layout']}" for row in rows]
    for name in ("b0", "b0s", "serial", "torch_loop", "b1", "b2_2", "b2_4", "ours", "ours_graph"):
        if f"{name}_us" in rows[0]:
            axes.plot(names, [row.get(f"{name}_us") for row in rows], marker="o", label=name)
    axes.set_ylabel("us")
    axes.tick_params(axis="x", rotation=90)
