"""A progress bar on standard error, after two seconds, where somebody watches."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

__all__ = ["Progress"]

_SHOW_AFTER_S = 2.0
_REDRAW_EVERY_S = 0.1
_WIDTH = 30


class Progress:
    """Counts steps; a context manager that wipes its line at the end.

    with Progress(steps, "layer") as progress:
        for ...: progress.step()
    """

    def __init__(self, total: int, label: str, stream: TextIO | None = None) -> None:
        self.total = max(total, 1)
        self.label = label
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._active = self._stream.isatty()
        self._begin = time.monotonic()
        self._drawn = 0.0

    def step(self, label: str | None = None) -> None:
        """One more step is done."""
        self.done += 1
        self.label = self.label if label is None else label
        now = time.monotonic()
        if (
            self._active
            and now - self._begin > _SHOW_AFTER_S
            and now - self._drawn > _REDRAW_EVERY_S
        ):
            self._drawn = now
            self._draw()

    def _draw(self) -> None:
        full = min(self.done, self.total) * _WIDTH // self.total
        bar = "#" * full + "-" * (_WIDTH - full)
        self._stream.write(f"\r{self.label} [{bar}] {self.done}/{self.total}\x1b[K")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __repr__(self) -> str:
        return f"Progress({self.label!r}, {self.done}/{self.total})"
