"""Ranks in processes of their own: who this process is, and a host all-gather with the others
(stage transport).

    me = bootstrap.from_environment()  # under tileoverlap launch, torchrun, mpirun or srun
    transport = MappedTransport(me.rank, me.world, ..., all_gather=me.all_gather)

An all-gather gives its argument, bytes, to all ranks and returns all ranks' bytes, by rank.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from tileoverlap import _core
from tileoverlap._args import as_int, as_nanoseconds
from tileoverlap._environment import RankVariables, read_environment
from tileoverlap.errors import DTypeError, Error, InvalidArgument, WaitTimeout

__all__ = [
    "STORE_PORT_OFFSET",
    "AllGather",
    "RankProcess",
    "from_environment",
    "from_mpi",
    "from_torch",
    "tcp",
]

STORE_PORT_OFFSET = 1371
"""from_environment() listens this far above MASTER_PORT, where torch.distributed has its own store;
below, where that passes 65535."""


class AllGather(ABC):
    """A callable, bytes -> list[bytes], and collective: the n-th call of each rank belongs to the
    n-th of the others, and waits for them with a limit. Thread safe. Once a call has raised, all
    further ones do. Also a context manager that closes."""

    def __init__(self, rank: int, world: int, what: str) -> None:
        self.rank = rank
        self.world = world
        self._what = what
        self._lock = threading.RLock()  # a signal handler may close what it interrupts
        self._ended: str | None = None

    def __call__(self, mine: bytes) -> list[bytes]:
        """All ranks' messages, by rank; lengths may differ.

        Raises:
            WaitTimeout: a rank is missing at the limit.
            Error: a rank has gone, the all-gather is closed, or has failed before.
        """
        try:
            message = bytes(memoryview(mine))
        except TypeError:
            raise DTypeError(f"a message must be bytes, got {type(mine).__name__}") from None
        with self._lock:
            if self._ended is not None:
                raise Error(f"rank {self.rank} has no host all-gather any more: {self._ended}")
            try:
                return self._gather(message)
            except BaseException as error:
                self._end(error)
                raise

    def close(self) -> None:
        """Lets go of connections; not collective, but a rank that still waits for this one then
        raises Error. Calls after it raise Error."""
        with self._lock:
            if self._ended != "it is closed":
                self._ended = "it is closed"
                self._close()

    @abstractmethod
    def _gather(self, mine: bytes) -> list[bytes]: ...

    @abstractmethod
    def _close(self) -> None: ...

    def _end(self, error: BaseException) -> None:
        lines = str(error).splitlines() or [""]
        self._ended = lines[0] or type(error).__name__

    def __enter__(self) -> AllGather:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        ended = "" if self._ended is None else f", {self._ended}"
        return f"AllGather(rank={self.rank} of {self.world}, {self._what}{ended})"


class _TcpAllGather(AllGather):
    def __init__(self, rank: int, world: int, address: str, limit_ns: int) -> None:
        super().__init__(rank, world, f"tcp {address}")
        self._core: _core.HostAllGather | None = _core.make_tcp_all_gather(
            rank=rank, world=world, address=address, limit_ns=limit_ns
        )

    def _gather(self, mine: bytes) -> list[bytes]:
        assert self._core is not None
        return self._core(mine)

    def _end(self, error: BaseException) -> None:
        pass  # the extension raises the same again

    def _close(self) -> None:
        self._core = None


class _MpiAllGather(AllGather):
    def __init__(self, comm: Any, limit_s: float) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm.Dup()
        self._limit_s = limit_s
        self._under_way: Any = None  # buffers that MPI still writes into after a limit
        super().__init__(self._comm.rank, self._comm.size, f"mpi {comm.name or 'communicator'}")

    def _gather(self, mine: bytes) -> list[bytes]:
        end = time.monotonic() + self._limit_s
        lengths = memoryview(bytearray(8 * self.world)).cast("q")
        length = memoryview(bytearray(8)).cast("q")
        length[0] = len(mine)
        self._wait(end, self._comm.Iallgather(length, lengths), (length, lengths))
        counts = list(lengths)
        places = [sum(counts[:rank]) for rank in range(self.world)]
        everything = bytearray(sum(counts))
        receive = [everything, counts, places, self._mpi.BYTE]
        request = self._comm.Iallgatherv([mine, self._mpi.BYTE], receive)
        self._wait(end, request, (mine, everything))
        return [
            bytes(everything[place : place + count])
            for place, count in zip(places, counts, strict=True)
        ]

    def _wait(self, end: float, request: Any, buffers: Any) -> None:
        self._under_way = request, buffers
        pause = 1e-5
        while not request.Test():
            if time.monotonic() >= end:
                raise WaitTimeout(
                    f"rank {self.rank}, stage transport: waited {self._limit_s:g} s for the host "
                    f"messages of all {self.world} ranks of an MPI communicator",
                    stage="transport",
                    what="host_message",
                    rank=self.rank,
                    timeout_s=self._limit_s,
                    raised_on=self.rank,
                )
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        self._under_way = None

    def _close(self) -> None:
        # Freeing is collective, and close() is not: MPI_Finalize takes what is left.
        pass


class _TorchAllGather(AllGather):
    def __init__(self, group: Any, own: bool) -> None:
        from torch import distributed

        self._torch = distributed
        self._group, self._own = group, own
        backend = distributed.get_backend(group)
        super().__init__(
            distributed.get_rank(group),
            distributed.get_world_size(group),
            f"torch {backend}{' of its own' if own else ''}",
        )

    def _gather(self, mine: bytes) -> list[bytes]:
        result: list[Any] = [None] * self.world
        try:
            self._torch.all_gather_object(result, mine, group=self._group)
        except RuntimeError as error:
            said = (str(error).splitlines() or [""])[0]
            raise Error(
                f"rank {self.rank}: torch.distributed cannot gather from {self.world} ranks: {said}"
            ) from error
        return result

    def _close(self) -> None:
        if self._own and self._torch.is_initialized():
            self._torch.destroy_process_group(self._group)


def tcp(rank: int, world: int, address: str, timeout: float | None = None) -> AllGather:
    """An all-gather over TCP, through rank 0. Waits until all ranks are there, in whatever order
    they come.

    Args:
        rank, world: this rank, of how many.
        address: the same on all ranks: "HOST:PORT" ("[::1]:29500" for IPv6), where rank 0 listens
            and the others look for it; or "file:PATH", a file on a disk that all ranks see, in
            which rank 0 says where it listens and which it removes when all are there.
        timeout: limit of each wait, seconds; None: TILEOVERLAP_TIMEOUT_S.

    Raises:
        InvalidArgument: a rank outside of the world or an address that is none; on all ranks: two
            that name different worlds, or the same rank.
        WaitTimeout: naming the first rank that is missing at the limit.
        Error: something else is at that address, or a rank has gone.
    """
    if not isinstance(address, str):
        raise DTypeError(f"address must be a str, got {type(address).__name__}")
    count = as_int("world", world, low=1)
    return _TcpAllGather(
        as_int("rank", rank, high=count - 1), count, address, as_nanoseconds("timeout", timeout)
    )


def from_mpi(comm: Any, timeout: float | None = None) -> AllGather:
    """An all-gather over a duplicate of an mpi4py communicator. Collective over `comm`.

    Args:
        comm: an mpi4py communicator, such as MPI.COMM_WORLD.
        timeout: limit of each call, seconds; None: TILEOVERLAP_TIMEOUT_S.
    """
    return _MpiAllGather(comm, _seconds(timeout))


def from_torch(group: Any = None, timeout: float | None = None) -> AllGather:
    """An all-gather over torch.distributed. Collective over the group.

    Args:
        group: a process group for this alone, whose calls nobody else makes. None: a gloo group of
            its own with all ranks. For a group that cannot carry tensors of the CPU, like one of
            nccl, a gloo group of the same ranks.
        timeout: limit of each call of a group of its own, seconds; None: TILEOVERLAP_TIMEOUT_S.

    Raises:
        Error: torch.distributed is not there or not initialised.
    """
    try:
        from torch import distributed
    except ImportError as error:
        raise Error(f"from_torch needs torch: {error}") from error
    if not (distributed.is_available() and distributed.is_initialized()):
        raise Error("from_torch needs torch.distributed.init_process_group() before it")
    limit = timedelta(seconds=_seconds(timeout))
    if group is None:
        return _TorchAllGather(distributed.new_group(backend="gloo", timeout=limit), own=True)
    if "cpu:" in str(distributed.get_backend_config(group)):
        return _TorchAllGather(group, own=False)
    own = distributed.new_group(
        distributed.get_process_group_ranks(group),
        backend="gloo",
        timeout=limit,
        use_local_synchronization=True,
    )
    return _TorchAllGather(own, own=True)


@dataclass(frozen=True)
class RankProcess:
    """This process among those that were started together."""

    rank: int
    world: int
    local_rank: int
    """Among the processes on this machine: the number of its GPU, where each has one."""
    local_world: int
    all_gather: AllGather


def from_environment(timeout: float | None = None) -> RankProcess:
    """Who this process is, by the variables that its launcher has set, and an all-gather with the
    others. Collective.

    `tileoverlap launch` and torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE. mpirun: those
    of Open MPI (OMPI_COMM_WORLD_RANK, ...) or of MPICH and Intel MPI (PMI_RANK, MPI_LOCALRANKID,
    ...). srun: SLURM_PROCID, SLURM_STEP_NUM_TASKS, .... The first of these that is there counts.

    The all-gather is tcp() at TILEOVERLAP_STORE, where that is set. Otherwise, with RANK: tcp() at
    MASTER_ADDR and MASTER_PORT + STORE_PORT_OFFSET, or from_torch() where these are not set and
    torch.distributed is initialised; with mpirun and srun: from_mpi(), with mpi4py.

    Args:
        timeout: limit of each wait, seconds; None: TILEOVERLAP_TIMEOUT_S.

    Raises:
        Error: no launcher's variables are there, or nothing that the ranks can meet by.
        InvalidArgument: a variable is missing or contradicts another.
        And what tcp() raises.
    """
    found = read_environment()
    if found is None:
        raise Error(
            "no rank is set in the environment: start the processes with tileoverlap launch, "
            "torchrun, mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and "
            "TILEOVERLAP_STORE"
        )
    return RankProcess(
        found.rank, found.world, found.local_rank, found.local_world, _meet(found, timeout)
    )


def _meet(found: RankVariables, timeout: float | None) -> AllGather:
    store = os.environ.get("TILEOVERLAP_STORE")
    if store or found.world == 1:
        return tcp(found.rank, found.world, store or "", timeout)
    if found.launcher == "mpi":
        return _meet_by_mpi(found, timeout)
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address and port:
        return tcp(found.rank, found.world, _beside(address, port), timeout)
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return _checked(from_torch(timeout=timeout), found, "torch.distributed")
    missing = "MASTER_PORT" if address else "MASTER_ADDR"
    raise Error(
        f"rank {found.rank} of {found.world} does not know where the ranks meet: set "
        f"TILEOVERLAP_STORE (HOST:PORT, or file:PATH on a disk that all see) or {missing}"
    )


def _meet_by_mpi(found: RankVariables, timeout: float | None) -> AllGather:
    if importlib.util.find_spec("mpi4py") is None:
        raise Error(
            f"rank {found.rank} of {found.world} ({found.rank_name}) does not know where the ranks "
            "meet: set TILEOVERLAP_STORE (HOST:PORT, or file:PATH on a disk that all see), or "
            "install mpi4py"
        )
    from mpi4py import MPI

    return _checked(from_mpi(MPI.COMM_WORLD, timeout), found, "mpi4py (MPI.COMM_WORLD)")


def _checked(all_gather: AllGather, found: RankVariables, what: str) -> AllGather:
    if (all_gather.rank, all_gather.world) != (found.rank, found.world):
        raise InvalidArgument(
            f"{found.rank_name} says rank {found.rank} of {found.world}, {what} says rank "
            f"{all_gather.rank} of {all_gather.world}; TILEOVERLAP_STORE lets the ranks meet "
            "without it"
        )
    return all_gather


def _beside(address: str, port: str) -> str:
    """Our address beside that of torch's store."""
    try:
        number = int(port)
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise InvalidArgument(f"MASTER_PORT must be a port in 1..65535, got '{port}'")
    up = number + STORE_PORT_OFFSET
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{up if up <= 65535 else number - STORE_PORT_OFFSET}"


def _seconds(timeout: float | None) -> float:
    return as_nanoseconds("timeout", timeout) / 1e9 or _core.wait_limit_s()
