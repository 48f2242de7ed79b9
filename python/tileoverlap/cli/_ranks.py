"""The processes of `tileoverlap launch`: their output, their ends, signals for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import IO

from tileoverlap.cli._parser import UsageError

__all__ = ["Ranks"]

_LOOK_EVERY_S = 0.05
_SAY_AFTER_S = 2.0
_TERMINATE_S = 3.0  # between SIGTERM and SIGKILL
_LAST_OUTPUT_S = 1.0  # for what a rank has started and left behind holds its pipes open, too


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    code: int | None = None
    ended_by_us: bool = False

    @property
    def how(self) -> str:
        """How it failed."""
        assert self.code is not None
        if self.code >= 0:
            how = f"exit code {self.code}"
        else:
            try:
                how = signal.Signals(-self.code).name
            except ValueError:
                how = f"signal {-self.code}"
        return f"{how} from this launcher" if self.ended_by_us else how


class _Lines:
    """One output of one rank, passed on in whole lines."""

    def __init__(self, source: IO[bytes], target: IO[bytes], prefix: bytes) -> None:
        self.source, self._target, self._prefix = source, target, prefix
        self._rest = b""

    def forward(self) -> bool:
        """Passes on what is there; False at the end."""
        data = os.read(self.source.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines, self._rest = [self._rest], b""
        if lines:
            self._target.write(b"".join(self._prefix + line + b"\n" for line in lines))
            self._target.flush()
        return bool(data)


class Ranks:
    """A context manager that leaves no process behind.

    Each rank leads a process group: signals reach what it has started, too, and Ctrl-C reaches the
    ranks once, through this process.
    """

    def __init__(self, *, prefix: bool, grace_s: float) -> None:
        self._prefix = prefix
        self._grace_s = grace_s
        self._ranks: list[_Rank] = []
        self._failed: list[_Rank] = []
        """In the order of their ends."""
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._next_step: tuple[float, Callable[[], None]] | None = None
        """When what is done to ranks that still run, after one has failed."""

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts the next rank."""
        number = len(self._ranks)
        pipe = subprocess.PIPE if self._prefix else None
        try:
            process = subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            raise UsageError(f"cannot start '{arguments[0]}': {error.strerror or error}") from None
        self._ranks.append(_Rank(number, process))
        prefix = f"[{number}] ".encode()
        for source, target in (
            (process.stdout, sys.stdout.buffer),
            (process.stderr, sys.stderr.buffer),
        ):
            if source is not None:
                lines = _Lines(source, target, prefix)
                self._selector.register(source, selectors.EVENT_READ, lines)

    def wait(self) -> int:
        """Until all ranks have ended. Returns the exit code, and says on standard error which
        failed."""
        while any(rank.code is None for rank in self._ranks):
            self._forward(_LOOK_EVERY_S)
            self._pass_signals_on()
            self._look_for_ends()
            if self._next_step is not None and time.monotonic() >= self._next_step[0]:
                self._next_step[1]()
        limit = time.monotonic() + _LAST_OUTPUT_S
        while self._selector.get_map() and time.monotonic() < limit:
            self._forward(_LOOK_EVERY_S)
        if not self._failed:
            return 0
        _say("; ".join(f"rank {rank.number} ended with {rank.how}" for rank in self._failed))
        code = self._failed[0].code
        assert code is not None
        return code if code >= 0 else 128 - code

    def _forward(self, limit_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(limit_s)
            return
        for key, _ in self._selector.select(limit_s):
            lines: _Lines = key.data
            if not lines.forward():
                self._selector.unregister(lines.source)
                lines.source.close()

    def _look_for_ends(self) -> None:
        failed = []
        for rank in self._running():
            rank.code = rank.process.poll()
            if rank.code:
                failed.append(rank)
        # Who is killed is missed by the others, who may end before the next look: it comes first.
        failed.sort(key=lambda rank: rank.code is not None and rank.code > 0)
        self._failed += failed
        if failed and self._next_step is None:
            self._begin_grace(f"rank {failed[0].number} ended with {failed[0].how}")

    def _begin_grace(self, why: str) -> None:
        begin = time.monotonic()

        def say_so() -> None:
            others = ", ".join(str(rank.number) for rank in self._running())
            _say(f"{why}; ranks {others} have {self._grace_s:g} s to end by themselves (--grace)")
            self._next_step = begin + self._grace_s, self._terminate

        # Most end at once.
        if self._grace_s > _SAY_AFTER_S:
            self._next_step = begin + _SAY_AFTER_S, say_so
        else:
            self._next_step = begin + self._grace_s, self._terminate

    def _terminate(self) -> None:
        self._end_all(signal.SIGTERM)
        self._next_step = time.monotonic() + _TERMINATE_S, self._kill

    def _kill(self) -> None:
        self._end_all(signal.SIGKILL)
        self._next_step = float("inf"), self._kill

    def _end_all(self, number: int) -> None:
        for rank in self._running():
            rank.ended_by_us = True
            _signal_group(rank, number)

    def _pass_signals_on(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._next_step is not None:  # somebody is asking a second time
                self._kill()
                continue
            for rank in self._running():
                _signal_group(rank, number)
            self._begin_grace(f"{signal.Signals(number).name} was passed on")

    def _running(self) -> Iterator[_Rank]:
        return (rank for rank in self._ranks if rank.code is None)

    def __enter__(self) -> Ranks:
        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        self._handlers = {
            number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for rank in self._running():
            _signal_group(rank, signal.SIGKILL)
            rank.process.wait()
        for key in list(self._selector.get_map().values()):
            key.data.source.close()
        self._selector.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


def _signal_group(rank: _Rank, number: int) -> None:
    # It may have ended since we last looked, but until then nobody else has its number.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process.pid, number)


def _say(message: str) -> None:
    print(f"tileoverlap launch: {message}", file=sys.stderr, flush=True)


def _prctl() -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    return function


_set_process_option = _prctl()  # looked up before any fork
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the new process: a launcher that is killed cannot end its ranks any more."""
    if _set_process_option is not None:
        _set_process_option(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
