"""Where a layer is run: the ranks' executors, and tensors where these want them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tileoverlap.cli._parser import UsageError
from tileoverlap.cli.info import usable_cores
from tileoverlap.cpu_executor import CpuExecutor
from tileoverlap.executor import Executor
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.transport import World

__all__ = ["CpuMachine", "Machine", "Values"]

Values = Any
"""A float array or a Bf16Array, on the host."""

_MOST_THREADS = 4096


class Machine(ABC):
    """What differs between devices."""

    device: str
    """As --device says it."""
    transport = "in_process"
    """As --transport says it."""
    options: dict[str, Any]
    """What the report says of the executors."""

    @abstractmethod
    def check_ranks(self, ranks: int) -> None:
        """Raises UsageError for more than it runs."""

    @abstractmethod
    def check_memory(self, need: int, what: str) -> None:
        """Raises UsageError for more than the device has; the host's memory is checked anyway."""

    def ranks_here(self, ranks: int) -> range:
        """Those that this process runs."""
        return range(ranks)

    def gather(self, mine: Any) -> list[Any]:
        """What each process gave, in the order of their ranks; what JSON can hold. Collective."""
        return [mine]

    @abstractmethod
    def executors(self, ranks: int, shared_bytes: int) -> Sequence[Executor]:
        """Of a new world of `ranks`, for ranks_here(), by rank. Others write into `shared_bytes` of
        each rank's memory at most."""

    @abstractmethod
    def put(self, values: Values) -> Any:
        """A tensor on the device."""

    @abstractmethod
    def get(self, tensor: Any) -> Values:
        """What put() made, on the host again; once everything is complete."""

    @abstractmethod
    def settle(self) -> None:
        """Waits until everything that was put is there, on all ranks."""

    @abstractmethod
    def keywords(self, rank: int) -> dict[str, Any]:
        """Further arguments of a call."""

    @abstractmethod
    def facts(self, layers: Sequence[MoeLayer]) -> dict[str, Any]:
        """What the report says of the machine: "threads" and "gpu", one of them None."""


class CpuMachine(Machine):
    """Threads of this process."""

    device = "cpu"

    def __init__(self, producer_threads: int, consumer_threads: int) -> None:
        self.options = {
            "producer_threads": producer_threads,
            "consumer_threads": consumer_threads,
        }
        self._threads = 1 + producer_threads + consumer_threads

    def check_ranks(self, ranks: int) -> None:
        if ranks * self._threads > _MOST_THREADS:
            raise UsageError(
                f"{ranks} ranks with these threads need {ranks * self._threads} threads, at most "
                f"{_MOST_THREADS} are run"
            )

    def check_memory(self, need: int, what: str) -> None:
        pass  # it is the host's

    def executors(self, ranks: int, shared_bytes: int) -> Sequence[Executor]:
        return [CpuExecutor(transport, **self.options) for transport in World(ranks).transports]

    def put(self, values: Values) -> Any:
        return values

    def get(self, tensor: Any) -> Values:
        return tensor

    def settle(self) -> None:
        pass

    def keywords(self, rank: int) -> dict[str, Any]:
        return {}

    def facts(self, layers: Sequence[MoeLayer]) -> dict[str, Any]:
        return {
            "threads": self.threads(len(layers)),
            "gpu": None,
        }

    def threads(self, ranks: int) -> dict[str, int]:
        """What the report says of a world's threads."""
        return {
            "a_rank": self._threads,
            "in_all": ranks * self._threads,
            "cores": usable_cores(),
        }
