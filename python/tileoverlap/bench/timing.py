"""Times of GPU work that can be compared: variants in turn within each repetition, so that all of
them meet the GPU at the same clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "Variant", "interleaved"]

_WARM_UPS = 10


@dataclass(frozen=True)
class Variant:
    """Something that launches work on torch's current stream."""

    body: Callable[[], Any]
    before: Callable[[], Any] | None = None
    """In front of each time, not measured."""


@dataclass(frozen=True)
class Timing:
    """In microseconds, over the repetitions."""

    median: float
    p10: float
    p90: float

    @staticmethod
    def of(values: list[float]) -> Timing:
        p10, median, p90 = np.percentile(values, (10, 50, 90))
        return Timing(float(median), float(p10), float(p90))


def interleaved(
    torch: Any,
    variants: Mapping[str, Variant],
    repetitions: int,
    warm_ups: int = _WARM_UPS,
) -> dict[str, Timing]:
    """Events around each variant, `repetitions` times after `warm_ups`.

    Each repetition has another order, drawn at random: what runs behind a long GEMM meets a lower
    clock than what runs behind a copy, and nobody must always be behind the same one.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times: dict[str, list[float]] = {name: [] for name in variants}
    draw = np.random.default_rng(0)
    for i in range(warm_ups + repetitions):
        for name in draw.permutation(list(variants)):
            variant = variants[name]
            if variant.before is not None:
                variant.before()
            begin.record()
            variant.body()
            end.record()
            end.synchronize()
            if i >= warm_ups:
                times[name].append(1e3 * begin.elapsed_time(end))
    return {name: Timing.of(values) for name, values in times.items()}
