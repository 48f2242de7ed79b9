"""The executor for machines without a GPU (stage execute)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tileoverlap import _core
from tileoverlap._args import as_instance, as_int
from tileoverlap.executor import Executor, Faults
from tileoverlap.transport import Transport

__all__ = ["CpuExecutor", "CpuFaults"]


@dataclass(frozen=True, kw_only=True)
class CpuFaults(Faults):
    """Disorder and faults of the CPU executor, for tests."""


class CpuExecutor(Executor):
    """Threads in place of kernels, with the same plan, flags, epochs, counters, credits and limits.

    Results do not depend on thread counts or faults.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        producer_threads: int = 1,
        consumer_threads: int = 1,
        faults: CpuFaults | None = None,
    ) -> None:
        """Makes one rank's executor.

        Args:
            transport: this rank's.
            producer_threads, consumer_threads: a rank, > 0.
            faults: disorder for tests.

        Raises:
            InvalidArgument: a count that is not positive.
        """
        as_instance("transport", transport, Transport)
        chosen = CpuFaults() if faults is None else as_instance("faults", faults, CpuFaults)
        core = _core.make_cpu_executor(
            transport._core,
            producer_threads=as_int("producer_threads", producer_threads, low=1),
            consumer_threads=as_int("consumer_threads", consumer_threads, low=1),
            **asdict(chosen),
        )
        super().__init__(core, transport)
