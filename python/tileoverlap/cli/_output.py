"""Writing results: files appear whole or not at all."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tileoverlap.errors import InvalidArgument

__all__ = ["OutputFile", "finite", "print_json", "size_text"]


class OutputFile:
    """A file that takes its name only when its content is complete.

    Entering makes a temporary file beside it, so that a place where nothing can be written is found
    before anything is computed (InvalidArgument); leaving without commit() removes it. What is no
    regular file, like /dev/stdout, is written directly.
    """

    def __init__(self, path: str, what: str) -> None:
        self._path = Path(path)
        self._what = what
        self._partial: Path | None = None
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> OutputFile:
        try:
            if self._path.is_dir():
                raise IsADirectoryError(None, "Is a directory")
            if self._path.exists() and not self._path.is_file():
                self._stream = open(self._path, "wb")
            else:
                # Through a link, the file that it points to is replaced.
                self._path = self._path.resolve()
                self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.partial")
                self._stream = open(self._partial, "xb")
        except OSError as error:
            raise InvalidArgument(
                f"cannot write {self._what} to {self._path}: {error.strerror or error}"
            ) from error
        return self

    @property
    def stream(self) -> IO[bytes]:
        """Where the content goes, as bytes."""
        assert self._stream is not None, "used outside of its with block"
        return self._stream

    def commit(self) -> None:
        """The content is complete."""
        self.stream.close()
        if self._partial is not None:
            os.replace(self._partial, self._path)
            self._partial = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)


def print_json(result: dict[str, Any]) -> None:
    """One object on standard output."""
    json.dump(result, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def finite(value: float | None) -> float | None:
    """What JSON can hold: None for infinite and undefined numbers."""
    return value if value is not None and math.isfinite(value) else None


def size_text(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
