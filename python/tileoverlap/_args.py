"""Checks of plain Python arguments. Tensors are checked in C++ (check_tensor)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from tileoverlap.errors import DTypeError, InvalidArgument

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def as_int(name: str, value: Any, *, low: int = 0, high: int = INT32_MAX) -> int:
    """Returns `value` as an int in low..high. Numpy integers count, bool and float do not."""
    if isinstance(value, bool):
        raise DTypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise DTypeError(f"{name} must be an integer, got {value!r}") from None
    if not low <= number <= high:
        bound = f"at least {low}" if number < low else f"at most {high}"
        raise InvalidArgument(f"{name} must be {bound}, got {number}")
    return number


def as_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns `value` where it is one of `choices`."""
    if value not in choices:
        listed = ", ".join(choices[:-1]) + f" or {choices[-1]}"
        raise InvalidArgument(f"{name} must be {listed}, got {value!r}")
    return str(value)


def as_nanoseconds(name: str, seconds: float | None) -> int:
    """Returns a limit in ns; None is 0, which lets the library choose."""
    if seconds is None:
        return 0
    try:
        number = float(seconds)
    except (TypeError, ValueError):
        raise DTypeError(f"{name} must be a number of seconds, got {seconds!r}") from None
    if not (math.isfinite(number) and 1e-3 <= number <= 1e9):
        raise InvalidArgument(f"{name} must lie in 0.001..1e9 seconds, got {seconds!r}")
    return int(number * 1e9)


def as_tile(tile: Any) -> tuple[int, int]:
    """Returns (tile_m, tile_n)."""
    try:
        tile_m, tile_n = tile
    except (TypeError, ValueError):
        raise InvalidArgument(f"tile must be (tile_m, tile_n), got {tile!r}") from None
    return as_int("tile_m", tile_m, low=1), as_int("tile_n", tile_n, low=1)


def as_instance(name: str, value: Any, wanted: type[Any]) -> Any:
    """Returns `value` where it is a `wanted`."""
    if not isinstance(value, wanted):
        raise DTypeError(f"{name} must be a {wanted.__name__}, got {type(value).__name__}")
    return value
