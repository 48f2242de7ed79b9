"""One rank in each of several processes, on GPUs, over NVSHMEM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tileoverlap import _core
from tileoverlap.bootstrap import RankProcess
from tileoverlap.cli._cuda import CudaMachine
from tileoverlap.cli._one_rank import OneRank
from tileoverlap.cuda_executor import CudaExecutor, cuda_devices
from tileoverlap.executor import Executor
from tileoverlap.nvshmem import NvshmemWorld

__all__ = ["NvshmemMachine", "has_nvshmem"]


def has_nvshmem() -> bool:
    """Whether the library was built with it."""
    return bool(_core.build_info()["nvshmem"])


class NvshmemMachine(OneRank, CudaMachine):
    """This process is one rank, on the GPU of its local number; where there are fewer GPUs than
    processes, several share one."""

    transport = "nvshmem"

    def __init__(self, me: RankProcess, options: Mapping[str, Any], stack: ExitStack) -> None:
        """`options`: of CudaExecutor. `stack` ends NVSHMEM when what was made from it has gone.
        Raises UsageError as CudaMachine."""
        self._me = me
        self._stack = stack
        super().__init__(options, device=me.local_rank % max(1, len(cuda_devices())))

    def check_ranks(self, ranks: int) -> None:
        pass  # each process has queues of its own

    def executors(self, ranks: int, shared_bytes: int) -> Sequence[Executor]:
        self._streams = [self._arrays.new_stream()]
        world = self._stack.enter_context(
            NvshmemWorld(
                self._me.rank, self._me.world, self._me.all_gather, device=self._gpu.number
            )
        )
        return [CudaExecutor(world.transport, **self.options)]

    def settle(self) -> None:
        super().settle()
        # NVSHMEM's world and gather() share one all-gather: gather() is called only between calls,
        # when all ranks have synchronised.
        self._me.all_gather(b"")
