"""W ranks that share one GPU, each on a stream of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tileoverlap._gpu_share import gpu_share
from tileoverlap.cli._device_arrays import find_device_arrays
from tileoverlap.cli._machine import Machine, Values
from tileoverlap.cli._output import size_text
from tileoverlap.cli._parser import UsageError
from tileoverlap.cuda_executor import CudaExecutor, cuda_devices, why_no_cuda_device
from tileoverlap.executor import Executor
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.transport import DeviceWorld

__all__ = ["CudaMachine", "ask_for_queues", "can_use_gpu"]

# A rank launches on two streams. Streams beyond the GPU's queues share them, and there a kernel of
# one rank can stand behind a kernel that waits for it.
_QUEUES = 32
_MOST_RANKS = _QUEUES // 2


def can_use_gpu() -> bool:
    """Whether there is a GPU that the library can use, and a framework to hold tensors there."""
    ask_for_queues()
    if not cuda_devices():
        return False
    try:
        find_device_arrays(0)
    except UsageError:
        return False
    return True


def ask_for_queues() -> None:
    """Enough for many ranks. Read by the driver when CUDA starts in this process."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(_QUEUES))


class CudaMachine(Machine):
    """One GPU."""

    device = "cuda"

    def __init__(self, options: Mapping[str, Any], device: int = 0) -> None:
        """`options`: of CudaExecutor. Raises UsageError where there is no GPU, or nothing that can
        hold tensors there."""
        ask_for_queues()
        found = cuda_devices()
        if not found:
            raise UsageError(f"argument --device: no GPU can be used: {why_no_cuda_device()}")
        self.options = dict(options)
        self._gpu = found[device]
        self._arrays = find_device_arrays(device)
        self._streams: list[Any] = []

    @property
    def dtypes(self) -> tuple[str, ...]:
        """That tensors can have, the default first."""
        return self._arrays.dtypes

    def check_ranks(self, ranks: int) -> None:
        if ranks > _MOST_RANKS:
            raise UsageError(
                f"{ranks} ranks are too many for one GPU, whose {_QUEUES} queues serve "
                f"{_MOST_RANKS}"
            )

    def check_memory(self, need: int, what: str) -> None:
        if need > self._gpu.memory_bytes:
            raise UsageError(
                f"{what} need {size_text(need)} of memory, {self._gpu.name} has "
                f"{size_text(self._gpu.memory_bytes)}"
            )

    def executors(self, ranks: int, shared_bytes: int) -> Sequence[Executor]:
        self._streams = [self._arrays.new_stream() for _ in range(ranks)]
        return [
            CudaExecutor(transport, **self.options)
            for transport in DeviceWorld(self._gpu.number, ranks).transports
        ]

    def put(self, values: Values) -> Any:
        return self._arrays.put(values)

    def get(self, tensor: Any) -> Values:
        return self._arrays.get(tensor)

    def settle(self) -> None:
        self._arrays.settle()

    def keywords(self, rank: int) -> dict[str, Any]:
        return {"stream": self._streams[rank]}

    def facts(self, layers: Sequence[MoeLayer]) -> dict[str, Any]:
        gpu = self._gpu
        share = gpu_share(layers[0])
        return {
            "threads": None,
            "gpu": {
                "number": gpu.number,
                "name": gpu.name,
                "compute_capability": "{}.{}".format(*gpu.capability),
                "sms": gpu.sms,
                "sms_a_rank": share.sms,
                "comm_sms_a_rank": share.comm_sms,
                "transfer": self.options["transfer"],
                "kernel": share.kernel,
            },
        }
