"""Return path of a Mixture-of-Experts layer, overlapped with the GEMM that feeds it, tile by tile.

    routing  ->  plan  ->  dispatch  ->  produce  ->  consume  ->  reduce
                           (________________ transport ________________)

Start with Placement, count_routes (or gather_counts), make_plan and CpuExecutor. The names mean the
same in C++.
"""

from tileoverlap import errors, reference, routing, trace
from tileoverlap._core import __version__
from tileoverlap._dlpack import TensorLike
from tileoverlap.bfloat16 import Bf16Array, to_bfloat16
from tileoverlap.counts import RouteCounts, count_routes
from tileoverlap.errors import (
    CallRefused,
    CapacityError,
    DTypeError,
    Error,
    InternalError,
    InvalidArgument,
    WaitTimeout,
)
from tileoverlap.execute import CpuExecutor, CpuFaults, MoeLayer, Session
from tileoverlap.placement import Placement
from tileoverlap.plan import (
    CopyIndex,
    Plan,
    SizeReport,
    check_plan,
    check_plans,
    make_plan,
    max_bands,
    max_padded_bands,
    max_segments,
    size_report,
    tile_arrays,
)
from tileoverlap.routing import Routed, route
from tileoverlap.timeline import OverlapTimes, Timeline, overlap_times, to_chrome_trace
from tileoverlap.trace import load_trace
from tileoverlap.transport import Transport, World, gather_counts

__all__ = [
    "Bf16Array",
    "CallRefused",
    "CapacityError",
    "CopyIndex",
    "CpuExecutor",
    "CpuFaults",
    "DTypeError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "MoeLayer",
    "OverlapTimes",
    "Placement",
    "Plan",
    "RouteCounts",
    "Routed",
    "Session",
    "SizeReport",
    "TensorLike",
    "Timeline",
    "Transport",
    "WaitTimeout",
    "World",
    "__version__",
    "check_plan",
    "check_plans",
    "count_routes",
    "errors",
    "gather_counts",
    "load_trace",
    "make_plan",
    "max_bands",
    "max_padded_bands",
    "max_segments",
    "overlap_times",
    "reference",
    "route",
    "routing",
    "size_report",
    "tile_arrays",
    "to_bfloat16",
    "to_chrome_trace",
    "trace",
]
