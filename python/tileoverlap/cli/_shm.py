"""One rank in each of several processes of this machine, over shared memory."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from tileoverlap.bootstrap import AllGather, RankProcess
from tileoverlap.cli._machine import CpuMachine
from tileoverlap.cli._one_rank import OneRank
from tileoverlap.cli._output import size_text
from tileoverlap.cpu_executor import CpuExecutor
from tileoverlap.errors import Error
from tileoverlap.executor import Executor
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.transport import MappedTransport

__all__ = ["ShmMachine"]


class ShmMachine(OneRank, CpuMachine):
    """Threads of this process are one rank; the other ranks are processes like it."""

    transport = "shm"

    def __init__(self, me: RankProcess, producer_threads: int, consumer_threads: int) -> None:
        super().__init__(producer_threads, consumer_threads)
        self._me = me

    def executors(self, ranks: int, shared_bytes: int) -> Sequence[Executor]:
        regions = _Regions(self._me.rank, self._me.all_gather, shared_bytes)
        # The layer's calls and gather() share one all-gather: gather() is called only between
        # calls, when all ranks have synchronised.
        transport = MappedTransport(
            self._me.rank,
            self._me.world,
            regions.bases,
            shared_bytes,
            ranks_on_device=self._me.world,
            all_gather=self._me.all_gather,
            owner=regions,
        )
        return [CpuExecutor(transport, **self.options)]

    def settle(self) -> None:
        self._me.all_gather(b"")

    def facts(self, layers: Sequence[MoeLayer]) -> dict[str, Any]:
        return {"threads": self.threads(self._me.world), "gpu": None}


class _Regions:
    """A zeroed region of each rank, mapped into this process. Collective. The names are gone when
    this is made, so that nothing stays behind however a rank ends."""

    def __init__(self, rank: int, all_gather: AllGather, nbytes: int) -> None:
        own, why = _make(nbytes)
        parts = [
            json.loads(part) for part in all_gather(json.dumps([own and own.name, why]).encode())
        ]
        try:
            for peer, (_, reason) in enumerate(parts):
                if reason is not None:
                    raise Error(
                        f"rank {peer} cannot have {size_text(nbytes)} of shared memory: {reason}"
                    )
            assert own is not None
            self._regions = [
                own if peer == rank else _attach(name) for peer, (name, _) in enumerate(parts)
            ]
            all_gather(b"")  # all have attached
        finally:
            if own is not None:
                own.unlink()
        self._exports = [ctypes.c_char.from_buffer(_memory(region)) for region in self._regions]
        self.bases = [ctypes.addressof(export) for export in self._exports]

    def __del__(self) -> None:
        # A region cannot be closed while something still points into its buffer.
        self._exports = []
        for region in getattr(self, "_regions", []):
            region.close()


def _make(nbytes: int) -> tuple[SharedMemory | None, str | None]:
    """A new region, or why there is none."""
    try:
        region = SharedMemory(create=True, size=nbytes)
    except OSError as error:
        return None, error.strerror or str(error)
    try:
        # Now rather than by a signal (SIGBUS) at the first use of a page that is not to be had.
        os.posix_fallocate(region._fd, 0, nbytes)  # type: ignore[attr-defined]
    except OSError as error:
        region.close()
        region.unlink()
        return None, error.strerror or str(error)
    return region, None


def _attach(name: str) -> SharedMemory:
    if sys.version_info >= (3, 13):
        return SharedMemory(name, track=False)
    region = SharedMemory(name)
    # Else this process would remove the name, at its end, once more.
    resource_tracker.unregister(region._name, "shared_memory")  # type: ignore[attr-defined]
    return region


def _memory(region: SharedMemory) -> memoryview:
    assert region.buf is not None
    return region.buf
