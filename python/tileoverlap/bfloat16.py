"""bfloat16 for numpy, which has no such type: the upper half of a float32 in a uint16.

torch, jax and ml_dtypes have their own bfloat16; their tensors are taken as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap import _core
from tileoverlap.errors import DTypeError, InvalidArgument

__all__ = ["Bf16Array", "to_bfloat16"]

_KDL_BFLOAT = 4
_KDL_CPU = 1


class Bf16Array:
    """A bfloat16 tensor over a numpy array of bit patterns.

    It can be passed wherever the library takes a tensor, as input and as output, and to any
    framework's ``from_dlpack``. It shares memory with `bits`.
    """

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        """Wraps `bits`, uint16 of any shape, without a copy. Raises DTypeError for another
        dtype."""
        if not isinstance(bits, np.ndarray) or bits.dtype != np.uint16:
            got = bits.dtype if isinstance(bits, np.ndarray) else type(bits).__name__
            raise DTypeError(f"bits must be a uint16 numpy array, got {got}")
        self.bits = bits

    @classmethod
    def empty(cls, shape: int | tuple[int, ...]) -> Bf16Array:
        """Makes an array whose values are not set."""
        return cls(np.empty(shape, np.uint16))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    def float32(self) -> npt.NDArray[np.float32]:
        """The values as a new float32 array; exact."""
        widened: npt.NDArray[np.uint32] = self.bits.astype(np.uint32) << np.uint32(16)
        return widened.view(np.float32)

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, index: Any) -> Bf16Array:
        """A view, as numpy gives it; an index that gives one value gives an array without
        dimensions."""
        return Bf16Array(np.asarray(self.bits[index]))

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KDL_CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Shares the memory; the capsule keeps it alive. Raises BufferError for what cannot be
        done."""
        if stream is not None:
            raise BufferError(f"a tensor on the cpu has no stream, got stream={stream!r}")
        if copy or (dl_device is not None and tuple(dl_device) != (_KDL_CPU, 0)):
            raise BufferError("a Bf16Array is shared as it is: no copy, no other device")
        read_only = not self.bits.flags.writeable
        tensor = _core.Tensor.from_memory(
            self.bits.__array_interface__["data"][0],
            list(self.bits.shape),
            [stride // 2 for stride in self.bits.strides],
            _KDL_BFLOAT,
            16,
            read_only,
            self.bits,
        )
        if max_version is not None and max_version[0] >= 1:
            return _core.Tensor.export_versioned(tensor)
        if read_only:
            raise BufferError("DLPack before 1.0 cannot say that a tensor is read-only")
        return _core.Tensor.export_plain(tensor)

    def __repr__(self) -> str:
        return f"Bf16Array(shape={self.shape})"


def to_bfloat16(values: npt.ArrayLike) -> Bf16Array:
    """Rounds float32 values to bfloat16: to nearest, ties to even; NaN stays NaN.

    Args:
        values: float32 of any shape; float16 and Python floats are converted first. float64 arrays
            are refused, since going through float32 would round twice.
    """
    array = np.asarray(values)
    if array.dtype == np.float64 and isinstance(values, np.ndarray):
        raise InvalidArgument(
            "to_bfloat16 needs float32 values, got float64: convert with .astype('float32')"
        )
    if array.dtype.kind not in "fiu":
        raise DTypeError(f"to_bfloat16 needs float32 values, got {array.dtype}")
    words = np.ascontiguousarray(array, np.float32).view(np.uint32).reshape(array.shape)
    rounded = words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    quiet_nan = words | np.uint32(0x00400000)
    is_nan = (words & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return Bf16Array((np.where(is_nan, quiet_nan, rounded) >> np.uint32(16)).astype(np.uint16))
