"""A DLPack producer with full control over what it hands out, made with ctypes alone."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = (ctypes.py_object,)

# Everything ever handed out: a callback must not be freed while it runs, nor a struct while a
# consumer may look at it.
_handed_out: list[Any] = []


def capsule_name(capsule: Any) -> str:
    return _capsule_name(capsule).decode()


class Producer:
    """Hands out the memory of `array` under whatever description the test wants.

    `deleted` counts deleter calls; with `scribble` the memory is filled with NaN by the deleter, as
    a framework that reuses it would.
    """

    def __init__(
        self,
        array: np.ndarray,
        *,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        null_strides: bool = False,
        null_data: bool = False,
        byte_offset: int = 0,
        code: int | None = None,
        bits: int | None = None,
        lanes: int = 1,
        device: tuple[int, int] = (CPU, 0),
        version: tuple[int, int] = (1, 0),
        flags: int = 0,
        old: bool = False,
        scribble: bool = False,
    ) -> None:
        self.array = array
        self.device = device
        self.version, self.flags, self.old, self.scribble = version, flags, old, scribble
        self.deleted = 0
        self.requests: list[dict[str, Any]] = []
        self.capsules: list[Any] = []
        shape = array.shape if shape is None else shape
        codes = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        if strides is None:
            strides = tuple(stride // array.itemsize for stride in array.strides)
        self._strides = None if null_strides else (ctypes.c_int64 * len(strides))(*strides)
        self._tensor = _Tensor(
            None if null_data else array.ctypes.data,
            _Device(*device),
            len(shape),
            _DType(
                codes[array.dtype.kind] if code is None else code,
                array.itemsize * 8 if bits is None else bits,
                lanes,
            ),
            self._shape,
            self._strides,
            byte_offset,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **request: Any) -> Any:
        self.requests.append(request)
        if self.old and "max_version" in request:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        if self.old:
            managed: Any = _Managed(self._tensor)
            name = b"dltensor"
        else:
            managed = _Versioned(*self.version, flags=self.flags, tensor=self._tensor)
            name = b"dltensor_versioned"

        def delete(_: Any) -> None:
            self.deleted += 1
            if self.scribble:
                self.array.fill(np.nan)

        managed.deleter = _DELETER(delete)
        _handed_out.append((managed, delete))
        capsule = _new_capsule(ctypes.addressof(managed), name, None)
        self.capsules.append(capsule)
        return capsule
