"""Reading arguments: whatever is wrong with them is one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__all__ = ["Parser", "UsageError", "choice", "count", "seconds"]


class UsageError(Exception):
    """Arguments that cannot be used."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of printing the usage and leaving."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def count(low: int = 1, high: int = 2**31 - 1) -> Callable[[str], int]:
    """An integer in low..high."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got '{text}'") from None
        if not low <= value <= high:
            bound = f"at least {low}" if value < low else f"at most {high}"
            raise argparse.ArgumentTypeError(f"must be {bound}, got {value}")
        return value

    return parse


def seconds(text: str) -> float:
    """A time limit."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, got '{text}'") from None
    if not (math.isfinite(value) and 1e-3 <= value <= 1e9):
        raise argparse.ArgumentTypeError(f"must lie in 0.001..1e9 seconds, got {text}")
    return value


def choice(choices: Sequence[str]) -> Callable[[str], str]:
    """One of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            listed = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
            raise argparse.ArgumentTypeError(f"must be {listed}, got '{text}'")
        return text

    return parse
