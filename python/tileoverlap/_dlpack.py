"""Anything with ``__dlpack__`` becomes a tensor on loan that C++ can check and use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tileoverlap import _core
from tileoverlap.errors import DTypeError, InvalidArgument

_MAX_VERSION = (1, 3)
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost: no stream there

# DLPack type codes, by numpy's kind and, for types that numpy itself does not know, by name.
_CODE_OF_KIND = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_CODE_OF_NAME = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}


@runtime_checkable
class TensorLike(Protocol):
    """A tensor of any framework: numpy, torch, jax, cupy, ... or a tileoverlap.Bf16Array."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


def as_tensor(value: Any, argument: str) -> _core.Tensor:
    """Borrows `value`; the memory stays alive for as long as the result does.

    Args:
        value: a numpy array or any object with ``__dlpack__`` and ``__dlpack_device__``.
        argument: its name in messages.

    Raises:
        DTypeError: `value` is no tensor, or has an element type that DLPack cannot name.
        InvalidArgument: its framework refuses to hand it out.
    """
    if isinstance(value, np.ndarray):
        return _from_numpy(value, argument)
    if isinstance(value, type) or not (
        hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")
    ):
        raise DTypeError(
            f"{argument} must be a tensor (numpy, torch, jax, cupy or any object with __dlpack__ "
            "and "
            f"__dlpack_device__), got {type(value).__name__}"
        )
    return _core.Tensor.from_capsule(_ask_for_capsule(value, argument), argument)


# One tensor [experts on this rank, rows, K], or a tensor [rows, K] an expert.
WeightsLike: TypeAlias = "TensorLike | Sequence[TensorLike]"


def as_weights(value: Any, argument: str) -> tuple[list[_core.Tensor], bool]:
    """Borrows weights, as as_tensor does.

    Returns:
        The tensors, and whether they are one an expert (a list or tuple) and not all in one.
    """
    if isinstance(value, (list, tuple)):
        return [as_tensor(one, f"{argument}[{i}]") for i, one in enumerate(value)], True
    return [as_tensor(value, argument)], False


def as_output(value: Any, argument: str) -> _core.Tensor:
    """Borrows `value` to be written. Read-only memory is refused by C++; a copy is refused here."""
    tensor = as_tensor(value, argument)
    if tensor.is_copy:
        raise InvalidArgument(
            f"{argument} is written to, but its __dlpack__ gave a copy, which nobody would see"
        )
    return tensor


def _ask_for_capsule(value: Any, argument: str) -> Any:
    try:
        device_type = int(value.__dlpack_device__()[0])
        # -1: the producer must not make our stream wait, since the order is ours to arrange. A CPU
        # has no stream.
        stream = {} if device_type in _CPU_DEVICES else {"stream": -1}
        try:
            return value.__dlpack__(**stream, max_version=_MAX_VERSION)
        except TypeError:
            return value.__dlpack__(**stream)  # a producer older than DLPack 1.0
    except Exception as error:
        # Frameworks raise what they like here: BufferError, RuntimeError, ValueError, ...
        raise InvalidArgument(
            f"{argument} cannot be shared by DLPack: "
            f"{type(value).__module__}.{type(value).__name__} says "
            f"{_one_line(error)}"
        ) from error


def _one_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _from_numpy(array: np.ndarray[Any, Any], argument: str) -> _core.Tensor:
    # numpy's own __dlpack__ refuses read-only arrays or (before 2.1) loses the flag, and knows no
    # bfloat16.
    dtype = array.dtype
    code = _CODE_OF_NAME.get(dtype.name, _CODE_OF_KIND.get(dtype.kind))
    if code is None or dtype.itemsize > 16 or dtype.names is not None:
        raise DTypeError(f"{argument} has the numpy dtype {dtype}, which is no number")
    if not dtype.isnative:
        raise DTypeError(
            f"{argument} has the byte-swapped dtype {dtype.str}, needed is the machine's"
        )
    return _core.Tensor.from_memory(
        array.__array_interface__["data"][0],
        list(array.shape),
        _element_strides(array, argument),
        code,
        dtype.itemsize * 8,
        not array.flags.writeable,
        array,
    )


def _element_strides(array: np.ndarray[Any, Any], argument: str) -> list[int]:
    itemsize = array.dtype.itemsize
    strides = []
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride % itemsize and size > 1 and array.size > 0:
            raise InvalidArgument(
                f"{argument} has a stride of {stride} bytes, no multiple of its element size of "
                f"{itemsize} bytes"
            )
        strides.append(stride // itemsize)
    return strides
