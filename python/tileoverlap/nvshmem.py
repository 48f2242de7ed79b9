"""Ranks in processes of their own, over NVSHMEM (stage transport)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType

from tileoverlap import _core
from tileoverlap._args import INT64_MAX, as_int
from tileoverlap.transport import Transport, as_bytes_of

__all__ = ["NvshmemWorld"]


class NvshmemWorld:
    """NVSHMEM in this process: one rank a process, on one GPU, on GPUs that reach each other, or
    over a network. A context manager: its end is close(), unless an exception is on its way.

    NVSHMEM itself is the copy that the process has loaded already (torch's, say), else the one that
    NVSHMEM_ROOT names, the package nvidia-nvshmem-cu13 (or -cu12), or the system's. Where the
    framework has started it, that world is used and left running.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        all_gather: Callable[[bytes], Iterable[bytes]],
        *,
        device: int = 0,
        ranks_on_device: int | None = None,
        map_peers: bool = True,
    ) -> None:
        """Starts NVSHMEM. Collective: waits for all ranks, as long as all_gather does.

        Args:
            rank, world: this rank, of how many.
            all_gather: gives its argument to all ranks and returns all ranks' messages, by rank;
                see MappedTransport, and tileoverlap.bootstrap for those there are.
            device: this rank's GPU, as this process numbers them.
            ranks_on_device: how many ranks share the GPU, whose SMs are then divided; None: those
                that name the same GPU.
            map_peers: False, for tests: NVSHMEM's puts for all peers, mapped or not.

        Raises:
            InvalidArgument: numbers out of range, different worlds on different ranks, or a graph
                that is being captured.
            Error: NVSHMEM cannot be loaded (saying where it was looked for), is of a version that
                does not fit (naming both), or does not start, on this rank or on another.
        """
        self._core = _core.start_nvshmem(
            rank=as_int("rank", rank),
            world=as_int("world", world, low=1),
            device=as_int("device", device),
            all_gather=as_bytes_of(all_gather),
            ranks_on_device=0
            if ranks_on_device is None
            else as_int("ranks_on_device", ranks_on_device, low=1),
            map_peers=bool(map_peers),
            libraries=_wheel_folders(),
        )
        self._transport: Transport | None = Transport(self._core.transport())

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def world(self) -> int:
        return self._core.world

    @property
    def transport(self) -> Transport:
        """Over all ranks; the same object each time. What executors prepare with it takes memory of
        NVSHMEM as it is needed."""
        if self._transport is None:
            self._transport = Transport(self._core.transport())  # says that the world is closed
        return self._transport

    def group(
        self,
        ranks: Sequence[int],
        nbytes: int,
        all_gather: Callable[[bytes], Iterable[bytes]],
    ) -> Transport:
        """A transport over some ranks, this one among them, in that order.

        Collective: every rank of the world calls it at the same point, each for its own group (a
        rank without peers for itself alone), all with the same `nbytes`.

        Args:
            ranks: the group, by number in this world.
            nbytes: what its sessions and layers may take together on each rank.
            all_gather: over the group.

        Raises:
            InvalidArgument: ranks out of range, named twice, or without this one; nbytes that
                differ between ranks.
            CallRefused: on the other ranks, naming the one whose arguments are wrong.
            Error: no memory left.
        """
        return Transport(
            self._core.group(
                [as_int(f"ranks[{i}]", rank) for i, rank in enumerate(ranks)],
                as_int("nbytes", nbytes, low=1, high=INT64_MAX),
                as_bytes_of(all_gather),
            )
        )

    def close(self) -> None:
        """Ends NVSHMEM, if this world has started it. Collective; again: nothing.

        Raises:
            Error: a rank is missing or still holds a session or layer. NVSHMEM is then left to the
                end of the process.
        """
        self._core.close()
        self._transport = None

    def __enter__(self) -> NvshmemWorld:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A rank that has failed does not wait for others, which may have failed, too.
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _wheel_folders() -> list[str]:
    """Where pip puts NVSHMEM."""
    try:
        spec = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return []
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [str(Path(folder) / "lib") for folder in spec.submodule_search_locations]
