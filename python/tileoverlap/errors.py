"""What can go wrong, as exception types. Every message is one sentence with names and numbers."""

from __future__ import annotations

from typing import Any

__all__ = [
    "CallRefused",
    "CapacityError",
    "DTypeError",
    "Error",
    "InternalError",
    "InvalidArgument",
    "WaitTimeout",
]


class Error(Exception):
    """Base of everything that tileoverlap raises on purpose."""


class InvalidArgument(Error, ValueError):
    """A value, shape, stride, device or combination that cannot be used. Nothing was started or
    written."""


class DTypeError(InvalidArgument, TypeError):
    """An element type that is not accepted, or an object that is no tensor at all."""


class CapacityError(InvalidArgument):
    """A call that needs more than its session was prepared for (max_tokens). The session stays
    usable."""


class CallRefused(Error, RuntimeError):
    """One rank refused a collective layer call: every rank's call ends with this, the layer stays
    usable."""


class InternalError(Error, RuntimeError):
    """A broken invariant of the library itself."""


class WaitTimeout(Error, TimeoutError):
    """A bounded wait ended without what it waited for, on this rank or on a peer that told us.

    Its limit was reached, the peer has closed, or the ranks' calls do not belong together.

    Indices that do not apply are -1.

    Attributes:
        stage: the stage that waited: "routing", "transport", "dispatch", "consume", "reduce",
            "execute".
        what: what it waited for: "counts", "memory", "dispatch_credit", "dispatch_arrival", "band",
            "credit", "arrival", "peer_closed" (the peer has closed its session), "same_plan" (the
            peer runs another plan), "same_terms" (it was prepared with other options), "error"
            (an error on `rank` itself, raised there), "connection" (the peer has not joined a host
            all-gather) or "host_message" (its message of one).
        rank: the rank that waited.
        peer: the rank it waited for (its own number for a band of its own GEMM).
        expert: global expert id.
        band, tile: band of the rank's output, and column tile of the band.
        segment: segment of the rank's plan.
        epoch: the call of this session, counted from 1.
        seen, expected: epochs for flags and credits, bytes of this call for arrivals, fingerprints
            for plans, 0 for the others.
        timeout_s: the limit, seconds.
        raised_on: the rank that raises; differs from `rank` when a peer reported the failure.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        what: str = "",
        rank: int = -1,
        peer: int = -1,
        expert: int = -1,
        band: int = -1,
        tile: int = -1,
        segment: int = -1,
        epoch: int = 0,
        seen: int = 0,
        expected: int = 0,
        timeout_s: float = 0.0,
        raised_on: int = -1,
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.what = what
        self.rank = rank
        self.peer = peer
        self.expert = expert
        self.band = band
        self.tile = tile
        self.segment = segment
        self.epoch = epoch
        self.seen = seen
        self.expected = expected
        self.timeout_s = timeout_s
        self.raised_on = raised_on

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the message alone; worker processes send exceptions
        # home.
        return type(self), self.args, dict(self.__dict__)
