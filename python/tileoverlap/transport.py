"""How ranks reach each other (stage transport)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from tileoverlap import _core
from tileoverlap._args import INT64_MAX, as_instance, as_int, as_nanoseconds
from tileoverlap._dlpack import TensorLike, as_tensor
from tileoverlap.counts import RouteCounts
from tileoverlap.errors import Error, InvalidArgument
from tileoverlap.placement import Placement

__all__ = ["DeviceWorld", "MappedTransport", "Transport", "World", "gather_counts"]

_CPU, _CUDA = 1, 2  # DLPack's device types


class Transport:
    """One rank's handle to the others. Made by World.transport or DeviceWorld.transport, or as a
    MappedTransport; owns symmetric memory. Thread safe."""

    def __init__(self, core: _core.Transport) -> None:
        self._core = core
        # Opened here, so that it is the first collective step on every rank, whatever follows.
        self._exchange = core.open_exchange()

    @property
    def world(self) -> int:
        return self._core.world

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def device(self) -> str:
        """Where this rank's symmetric memory lies: "cpu" or "cuda:1"."""
        kind, number = self._core.device
        return "cpu" if kind == _CPU else f"cuda:{number}"

    @property
    def ranks_on_device(self) -> int:
        """How many ranks of this world, this one included, share `device`."""
        return self._core.ranks_on_device

    def __repr__(self) -> str:
        return repr(self._core)


class _Ranks:
    """All ranks of a world that lies inside this process."""

    def __init__(self, cores: Sequence[_core.Transport]) -> None:
        self._transports = [Transport(core) for core in cores]

    @property
    def transports(self) -> list[Transport]:
        """By rank."""
        return list(self._transports)

    def transport(self, rank: int) -> Transport:
        """The handle of `rank`; the same object each time."""
        return self._transports[as_int("rank", rank, high=len(self) - 1)]

    def __len__(self) -> int:
        return len(self._transports)


class World(_Ranks):
    """W ranks inside one process, on the CPU.

    One thread may drive all ranks: `prepare`, `run` and `forward` do not wait for peers; only
    `synchronize` and `gather_counts` do. The world's state lives as long as anything made from it.
    """

    def __init__(self, world: int) -> None:
        """Makes `world` >= 1 ranks (InvalidArgument)."""
        super().__init__(_core.make_in_process_world(as_int("world", world, low=1)))

    def __repr__(self) -> str:
        return f"World({len(self)})"


class DeviceWorld(_Ranks):
    """W ranks inside one process, on CUDA devices that reach each other's memory.

    One thread may drive all ranks, as with World.
    """

    def __init__(self, devices: Sequence[int] | int, ranks: int | None = None) -> None:
        """Makes the ranks; enables access of the devices to each other, allocates nothing.

        Args:
            devices: the CUDA device of each rank, by rank; one may be named several times. Or the
                one device of all ranks.
            ranks: how many ranks; only with one device, where None is 1.

        Raises:
            InvalidArgument: no rank, a device that is not there, or two that cannot reach each
                other's memory.
            Error: no CUDA device can be used, or the library was built without CUDA.
        """
        if isinstance(devices, Sequence) and not isinstance(devices, (str, bytes)):
            numbers = [as_int(f"devices[{rank}]", device) for rank, device in enumerate(devices)]
            if ranks is not None:
                raise InvalidArgument(
                    f"ranks is for one device; devices names {len(numbers)}, one a rank"
                )
        else:
            count = 1 if ranks is None else as_int("ranks", ranks, low=1)
            numbers = [as_int("devices", devices)] * count
        self._devices = numbers
        super().__init__(_core.make_device_world(numbers))

    def __repr__(self) -> str:
        return f"DeviceWorld({self._devices})"


class MappedTransport(Transport):
    """One rank over memory that somebody else has mapped: torch symmetric memory, CUDA IPC, shared
    memory, a numpy array.

    Each rank has a region of the same size; all are mapped into this process. Sessions and layers
    take their memory from the front of the regions on, in the same order on all ranks.

    With `all_gather`, `prepare` waits for the other ranks and compares what they prepare: each
    rank has a thread or process of its own. Without it nothing is compared on the host, and what
    needs host messages (gather_counts, layers of CpuExecutor) raises Error.

    Memory that is let go is used again only once all ranks have let go of everything; `prepare`
    then starts over at the front. That needs `all_gather`, and `zero` unless the device is the CPU.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        bases: Sequence[int],
        nbytes: int,
        *,
        device: str = "cpu",
        ranks_on_device: int = 1,
        all_gather: Callable[[bytes], Iterable[bytes]] | None = None,
        zero: Callable[[int, int], object] | None = None,
        owner: object = None,
    ) -> None:
        """Borrows the regions; calls nothing.

        Args:
            rank, world: this rank, of how many.
            bases: [world] addresses of the ranks' regions as mapped into this process, multiples
                of 256; bases[rank] is this rank's own. Zeroed before any rank uses its transport.
            nbytes: of each region.
            device: where this rank's region lies: "cpu" or "cuda:1" (or a torch.device).
            ranks_on_device: how many ranks share the device, this one included.
            all_gather: gives its argument to all ranks and returns all ranks' messages, by rank;
                lengths may differ. It is called from several threads, one at a time, and waits
                for the others with a limit of its own. What it raises ends the host exchange of
                this transport. torch.distributed, MPI: over a group of its own.
            zero: zero(address, nbytes) clears part of this rank's own region, complete on return.
            owner: kept alive as long as anything made from this transport.

        Raises:
            InvalidArgument: a rank outside of the world, a number of bases other than `world`,
                bases that are 0, not aligned or closer than `nbytes`, nbytes < 1.
        """
        super().__init__(
            _core.make_mapped_transport(
                rank=as_int("rank", rank),
                world=as_int("world", world, low=1),
                bases=[
                    as_int(f"bases[{peer}]", base, high=2**64 - 1)
                    for peer, base in enumerate(bases)
                ],
                nbytes=as_int("nbytes", nbytes, low=1, high=INT64_MAX),
                device=_as_device(device),
                ranks_on_device=as_int("ranks_on_device", ranks_on_device, low=1),
                all_gather=None if all_gather is None else as_bytes_of(all_gather),
                zero=zero,
                owner=owner,
            )
        )


def _as_device(device: object) -> tuple[int, int]:
    """DLPack's (type, number) of "cpu" or "cuda:1"."""
    name = str(device)
    kind, colon, number = name.partition(":")
    if kind == "cpu" and number in ("", "0"):
        return _CPU, 0
    if kind == "cuda" and colon and number.isdecimal():
        return _CUDA, as_int("device", int(number))
    raise InvalidArgument(f"device must be 'cpu' or 'cuda:' and a number, got {name!r}")


def as_bytes_of(
    all_gather: Callable[[bytes], Iterable[bytes]],
) -> Callable[[bytes], list[bytes]]:
    """`all_gather` as the extension calls it: what holds bytes becomes bytes; TypeError else."""
    return lambda mine: [bytes(memoryview(message)) for message in all_gather(mine)]


def gather_counts(
    transport: Transport,
    placement: Placement,
    topk_ids: TensorLike,
    *,
    timeout_s: float | None = None,
) -> RouteCounts:
    """Counts this rank's ids and gathers the matrix from all ranks.

    Collective: every rank calls it, from a thread (or process) of its own, since it waits for the
    others. Ranks of one process under one thread use count_routes.

    Args:
        transport: this rank's.
        placement: experts by rank, the same on all ranks.
        topk_ids: [T, k] int32 or int64 on the CPU; -1 = no copy.
        timeout_s: limit of the wait; None: TILEOVERLAP_TIMEOUT_S.

    Raises:
        DTypeError, InvalidArgument: as count_routes, on the rank whose ids they are.
        CallRefused: on all others, naming that rank.
        WaitTimeout: naming the first rank that is missing.
    """
    as_instance("transport", transport, Transport)
    as_instance("placement", placement, Placement)
    if placement.world != transport.world:
        raise InvalidArgument(
            f"placement has {placement.world} ranks, the transport's world has {transport.world}"
        )
    limit_ns = as_nanoseconds("timeout_s", timeout_s)
    mine = transport._exchange, placement._core, transport.rank
    try:
        tensor = as_tensor(topk_ids, "topk_ids")
    except InvalidArgument:
        # Tells the other ranks, which would wait for us.
        with contextlib.suppress(Error):
            _core.gather_counts(*mine, None, limit_ns)
        raise
    return RouteCounts._wrap(_core.gather_counts(*mine, tensor, limit_ns))
