"""Return path of a Mixture-of-Experts layer, overlapped with the GEMM that feeds it, tile by tile.

    routing  ->  plan  ->  dispatch  ->  produce  ->  consume  ->  reduce
                           (________________ transport ________________)

Start with Placement, count_routes (or gather_counts), make_plan and CpuExecutor or CudaExecutor.
The names mean the same in C++.
"""

from tileoverlap import bootstrap, errors, predict, reference, routing, trace
from tileoverlap._core import __version__
from tileoverlap._dlpack import TensorLike
from tileoverlap._stream import StreamLike
from tileoverlap.bfloat16 import Bf16Array, to_bfloat16
from tileoverlap.capacity import (
    SizeReport,
    max_bands,
    max_padded_bands,
    max_rows,
    max_segments,
    size_report,
)
from tileoverlap.counts import RouteCounts, count_routes
from tileoverlap.cpu_executor import CpuExecutor, CpuFaults
from tileoverlap.cuda_executor import (
    CudaDevice,
    CudaExecutor,
    CudaFaults,
    TileChoice,
    choose_tile,
    cuda_devices,
    why_no_cuda_device,
)
from tileoverlap.errors import (
    CallRefused,
    CapacityError,
    DTypeError,
    Error,
    InternalError,
    InvalidArgument,
    WaitTimeout,
)
from tileoverlap.executor import Executor
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.nvshmem import NvshmemWorld
from tileoverlap.placement import Placement
from tileoverlap.plan import CopyIndex, Plan, check_plan, check_plans, make_plan, tile_arrays
from tileoverlap.routing import Routed, route
from tileoverlap.session import Session
from tileoverlap.timeline import OverlapTimes, Timeline, overlap_times, to_chrome_trace
from tileoverlap.trace import load_trace
from tileoverlap.transport import (
    DeviceWorld,
    MappedTransport,
    Transport,
    World,
    gather_counts,
)

__all__ = [
    "Bf16Array",
    "CallRefused",
    "CapacityError",
    "CopyIndex",
    "CpuExecutor",
    "CpuFaults",
    "CudaDevice",
    "CudaExecutor",
    "CudaFaults",
    "DTypeError",
    "DeviceWorld",
    "Error",
    "Executor",
    "InternalError",
    "InvalidArgument",
    "MappedTransport",
    "MoeLayer",
    "NvshmemWorld",
    "OverlapTimes",
    "Placement",
    "Plan",
    "RouteCounts",
    "Routed",
    "Session",
    "SizeReport",
    "StreamLike",
    "TensorLike",
    "TileChoice",
    "Timeline",
    "Transport",
    "WaitTimeout",
    "World",
    "__version__",
    "bootstrap",
    "check_plan",
    "check_plans",
    "choose_tile",
    "count_routes",
    "cuda_devices",
    "errors",
    "gather_counts",
    "load_trace",
    "make_plan",
    "max_bands",
    "max_padded_bands",
    "max_rows",
    "max_segments",
    "overlap_times",
    "predict",
    "reference",
    "route",
    "routing",
    "size_report",
    "tile_arrays",
    "to_bfloat16",
    "to_chrome_trace",
    "trace",
    "why_no_cuda_device",
]
