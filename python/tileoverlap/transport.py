"""How ranks reach each other (stage transport)."""

from __future__ import annotations

import contextlib

from tileoverlap import _core
from tileoverlap._args import as_instance, as_int, as_nanoseconds
from tileoverlap._dlpack import TensorLike, as_tensor
from tileoverlap.counts import RouteCounts
from tileoverlap.errors import Error, InvalidArgument
from tileoverlap.placement import Placement

__all__ = ["Transport", "World", "gather_counts"]


class Transport:
    """One rank's handle to the others. Made by World.transport; owns symmetric memory. Thread
    safe."""

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

    def __repr__(self) -> str:
        return repr(self._core)


class World:
    """W ranks inside one process, on the CPU.

    One thread may drive all ranks: `prepare`, `run` and `forward` do not wait for peers; only
    `synchronize` and `gather_counts` do. The world's state lives as long as anything made from it.
    """

    def __init__(self, world: int) -> None:
        """Makes `world` >= 1 ranks (InvalidArgument)."""
        self._transports = [
            Transport(core) for core in _core.make_in_process_world(as_int("world", world, low=1))
        ]

    @property
    def transports(self) -> list[Transport]:
        """By rank."""
        return list(self._transports)

    def transport(self, rank: int) -> Transport:
        """The handle of `rank`; the same object each time."""
        return self._transports[as_int("rank", rank, high=len(self) - 1)]

    def __len__(self) -> int:
        return len(self._transports)

    def __repr__(self) -> str:
        return f"World({len(self)})"


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
