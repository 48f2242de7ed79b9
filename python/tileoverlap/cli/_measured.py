"""What comes out of a layer's runs, and putting together what came out of several processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from tileoverlap.reference import Comparison
from tileoverlap.timeline import Timeline

__all__ = ["Measured", "OperatorTimes", "of_all_ranks", "worse"]


@dataclass
class OperatorTimes:
    """Times of one mode, ns, one entry an iteration; the slowest rank counts."""

    begin: list[int] = field(default_factory=list)
    """Of the first rank's call; by a clock that all processes share."""
    end: list[int] = field(default_factory=list)
    """The last rank's completion."""
    gemm: list[int] = field(default_factory=list)
    """First tile to last tile."""
    after_gemm: list[int] = field(default_factory=list)
    """Last tile to last landed row: all of the return in serial mode, what is not hidden in
    overlapped mode."""
    operator: list[int] = field(default_factory=list)
    """First tile to last landed row."""

    @property
    def layer(self) -> list[int]:
        return [end - begin for begin, end in zip(self.begin, self.end, strict=True)]


@dataclass
class Measured:
    """What came out on all ranks."""

    times: dict[str, OperatorTimes]
    bit_equal: bool
    comparison: Comparison
    timelines: list[Timeline]
    """Of the last overlapped call, of the ranks of this process."""
    facts: dict[str, Any]
    """Of the machine that ran."""

    def median_ms(self, mode: str, what: str) -> float:
        values: list[int] = getattr(self.times[mode], what)
        return median(values) / 1e6

    def overlap_ratios(self) -> tuple[float | None, float | None]:
        """(timeline, wall), as defined for the operator; None where nothing is sent."""
        alone = self.median_ms("serial", "after_gemm")
        if alone <= 0:
            return None, None
        timeline = 1 - self.median_ms("overlapped", "after_gemm") / alone
        saved = self.median_ms("serial", "gemm") + alone - self.median_ms("overlapped", "operator")
        return timeline, saved / alone


def of_all_ranks(mine: Measured, gather: Callable[[Any], list[Any]]) -> Measured:
    """The slowest and the worst of all processes, on each of them."""
    parts = gather(
        {
            "times": {mode: asdict(times) for mode, times in mine.times.items()},
            "bit_equal": bool(mine.bit_equal),
            "comparison": [
                float(mine.comparison.per_token),
                float(mine.comparison.relative_l2),
                bool(mine.comparison.ok),
            ],
        }
    )
    comparison = mine.comparison
    for part in parts:
        comparison = worse(comparison, Comparison(*part["comparison"]))
    return Measured(
        times={mode: _slowest([part["times"][mode] for part in parts]) for mode in mine.times},
        bit_equal=all(part["bit_equal"] for part in parts),
        comparison=comparison,
        timelines=mine.timelines,
        facts=mine.facts,
    )


def worse(a: Comparison, b: Comparison) -> Comparison:
    return Comparison(
        max(a.per_token, b.per_token), max(a.relative_l2, b.relative_l2), a.ok and b.ok
    )


def _slowest(parts: list[dict[str, list[int]]]) -> OperatorTimes:
    return OperatorTimes(
        **{
            name: [
                min(values) if name == "begin" else max(values)
                for values in zip(*(part[name] for part in parts), strict=True)
            ]
            for name in parts[0]
        }
    )
