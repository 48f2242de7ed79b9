"""What sessions and layers share (stage execute)."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Any, Generic, TypeVar

from tileoverlap import _core
from tileoverlap._args import as_choice
from tileoverlap.capacity import SizeReport, read_sizes
from tileoverlap.errors import Error, InvalidArgument
from tileoverlap.timeline import Timeline

__all__ = ["MODES", "Calls", "run_mode"]

MODES = ("overlapped", "serial")
_POLL_NS = 100_000_000
# Calls whose tensors are kept before completed ones are looked for, and before the host waits a
# while for them: it cannot be that far ahead of a GPU for long.
_MANY_KEPT, _TOO_MANY_KEPT = 64, 1024

_CoreCalls = TypeVar("_CoreCalls", _core.Session, _core.MoeLayer)


class Calls(Generic[_CoreCalls]):
    """Asynchronous calls whose tensors are kept until they have completed."""

    def __init__(self, core: _CoreCalls, *, cuda_device: int | None = None) -> None:
        self._held: _CoreCalls | None = core
        self._cuda_device = cuda_device  # None: calls have no streams
        self._rank: int = core.rank
        self._lock = threading.Lock()
        # Tensors of calls that may still be running, by number of the call. C++ only borrows them,
        # and a producer of DLPack tensors may reuse its memory as soon as ours are gone.
        self._borrowed: dict[int, Any] = {}
        self._kept = 0

    @property
    def _core(self) -> _CoreCalls:
        if self._held is None:
            raise InvalidArgument(f"the {type(self).__name__} of rank {self._rank} is closed")
        return self._held

    def synchronize(self) -> None:
        """Waits until every call so far has completed, then releases their tensors.

        Raises:
            WaitTimeout: a call has failed; nothing more can be run.
            CallRefused: a rank refused a layer's call since the last synchronize().
        """
        core = self._core
        with self._lock:
            done = list(self._borrowed)
        while not core.wait(_POLL_NS):  # in between, Python sees signals such as Ctrl-C
            pass
        self._let_go(done)
        core.synchronize()

    def check(self) -> None:
        """Raises WaitTimeout if a call has failed. Does not wait."""
        self._core.check()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def epoch(self) -> int:
        """Of the last call that has begun; calls that a layer refused count on a GPU only."""
        return self._core.epoch

    @property
    def sizes(self) -> SizeReport:
        """Bytes of the workspace, part by part."""
        return read_sizes(self._core.sizes())

    def timeline(self) -> Timeline:
        """Of the last completed call, with record_timeline; call it after synchronize()."""
        return Timeline(self._core.timeline())

    def close(self) -> None:
        """Stops what is running, joins the worker threads and frees the workspace.

        Peers that still need this rank get a WaitTimeout. Closing twice is fine; so is leaving it
        to the garbage collector.
        """
        if self._held is not None and self._cuda_device is not None:
            # Bounded by the limits of the calls' waits. Here and not in C++, which would hold the
            # GIL that threads of other ranks need for what these calls wait for.
            with contextlib.suppress(Error):
                while not self._held.wait(_POLL_NS):
                    pass
        self._held = None  # the last reference: C++ stops and joins here
        self._borrowed = {}

    def _make_room(self) -> None:
        """Before a call: lets go of what nobody needs, for those who never synchronize()."""
        with self._lock:
            if len(self._borrowed) < _MANY_KEPT:
                return
            calls = list(self._borrowed)
        with contextlib.suppress(Error):  # not this call's, and the call is what matters
            if self._core.wait(0 if len(calls) < _TOO_MANY_KEPT else _POLL_NS):
                self._let_go(calls)

    def _let_go(self, calls: list[int]) -> None:
        with self._lock:
            tensors = [self._borrowed.pop(call, None) for call in calls]
        del tensors  # outside of the lock: a producer's deleter is foreign code

    def _keep(self, *tensors: Any) -> None:
        with self._lock:
            self._kept += 1
            self._borrowed[self._kept] = tensors

    def __del__(self) -> None:
        if hasattr(self, "_borrowed"):
            self.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            repr(self._held)
            if self._held is not None
            else f"{type(self).__name__}(rank={self._rank}, closed)"
        )


def run_mode(mode: str) -> _core.RunMode:
    """The C++ name of a mode."""
    return _core.RunMode[as_choice("mode", mode, MODES)]
