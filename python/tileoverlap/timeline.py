"""What happened when, for one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tileoverlap import _core

__all__ = ["SPANS", "OverlapTimes", "Timeline", "overlap_times", "to_chrome_trace"]

SPANS: tuple[str, ...] = tuple(_core.spans)
"""Names of the spans, indexed by the events' `span`."""

_EVENT: np.dtype[Any] = np.dtype(_core.event_layout)


class Timeline:
    """Spans recorded by the worker threads of one rank during one call."""

    def __init__(self, core: _core.Timeline) -> None:
        self._core = core

    @property
    def events(self) -> npt.NDArray[Any]:
        """Read-only records: span, rank, worker, item (band or segment, -1), peer (-1), begin_ns,
        end_ns."""
        return self._core.events().view(_EVENT)

    @property
    def worker_names(self) -> list[str]:
        """Indexed by the events' `worker`."""
        return list(self._core.worker_names)

    def __repr__(self) -> str:
        return f"Timeline({len(self.events)} events, {len(self.worker_names)} workers)"


class OverlapTimes(NamedTuple):
    """When the last tile was produced and the last row landed: steady clock, ns; 0 where there was
    none."""

    first_ns: int
    """First event of the operator (produce and consume)."""
    gemm_end_ns: int
    landed_ns: int

    @property
    def landed_after_ns(self) -> int:
        """How long after the last tile the last row landed; 0 where it landed before."""
        return max(self.landed_ns - self.gemm_end_ns, 0)


def to_chrome_trace(timelines: Iterable[Timeline]) -> str:
    """JSON for chrome://tracing or Perfetto: one process a rank, one row a worker thread,
    microseconds."""
    return _core.to_chrome_trace([timeline._core for timeline in timelines])


def overlap_times(timelines: Iterable[Timeline]) -> OverlapTimes:
    """The operator's three moments over all given timelines together."""
    times = _core.overlap_times([timeline._core for timeline in timelines])
    return OverlapTimes(times.first_ns, times.gemm_end_ns, times.landed_ns)
