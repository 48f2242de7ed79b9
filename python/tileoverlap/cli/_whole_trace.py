"""One trace of the ranks of all processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tileoverlap.cli._machine import Machine
from tileoverlap.timeline import Timeline, to_chrome_trace

__all__ = ["whole_trace"]

_NS_A_US = 1000


def whole_trace(timelines: Sequence[Timeline], machine: Machine) -> str:
    """JSON for chrome://tracing or Perfetto, the same in each process. Collective."""
    mine = to_chrome_trace(timelines)
    begins = [int(line.events["begin_ns"].min()) for line in timelines if len(line.events)]
    parts = machine.gather([min(begins, default=None), mine])
    if len(parts) == 1:
        return mine
    # Each trace begins at 0 with its own first event; the clock is the machine's.
    origin = min((begin for begin, _ in parts if begin is not None), default=0)
    events: list[dict[str, Any]] = []
    whole: dict[str, Any] = {}
    for begin, trace in parts:
        whole = json.loads(trace)
        for event in whole["traceEvents"]:
            if "ts" in event:
                event["ts"] = round(event["ts"] + (begin - origin) / _NS_A_US, 3)
            events.append(event)
    return json.dumps({**whole, "traceEvents": events})
