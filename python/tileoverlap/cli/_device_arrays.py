"""Tensors on a GPU, by whichever framework is installed: torch, or else cupy."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import numpy as np

from tileoverlap.bfloat16 import Bf16Array
from tileoverlap.cli._parser import UsageError

__all__ = ["DeviceArrays", "find_device_arrays"]


class DeviceArrays(Protocol):
    """Moves tensors to one device and back, and makes streams there."""

    dtypes: tuple[str, ...]
    """That it can hold, the default first."""

    def put(self, values: Any) -> Any: ...

    def get(self, tensor: Any) -> Any: ...

    def settle(self) -> None:
        """Waits for all work of the device."""

    def new_stream(self) -> Any:
        """One that no other waits for."""


def find_device_arrays(device: int) -> DeviceArrays:
    """Raises UsageError where neither framework can be used."""
    missing = []
    for kind in (_TorchArrays, _CupyArrays):
        try:
            return kind(device)
        except (ImportError, OSError, _NotUsableError) as error:
            missing.append(str(error).strip().partition("\n")[0])
    raise UsageError(
        "argument --device: cuda needs torch or cupy to hold the tensors (--device cpu does not): "
        + "; ".join(missing)
    )


class _NotUsableError(Exception):
    """A framework that is there, but not for this GPU."""


class _TorchArrays:
    dtypes: tuple[str, ...] = ("bfloat16", "float16")

    def __init__(self, device: int) -> None:
        torch: Any = import_module("torch")
        if not torch.cuda.is_available():
            raise _NotUsableError(f"torch {torch.__version__} finds no GPU")
        self._torch = torch
        self._device = torch.device("cuda", device)

    def put(self, values: Any) -> Any:
        torch = self._torch
        if isinstance(values, Bf16Array):
            bits = np.ascontiguousarray(values.bits).view(np.int16)
            return torch.from_numpy(bits).view(torch.bfloat16).to(self._device)
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def get(self, tensor: Any) -> Any:
        torch = self._torch
        if tensor.dtype == torch.bfloat16:
            return Bf16Array(tensor.view(torch.int16).cpu().numpy().view(np.uint16))
        return tensor.cpu().numpy()

    def settle(self) -> None:
        self._torch.cuda.synchronize(self._device)

    def new_stream(self) -> Any:
        return self._torch.cuda.Stream(self._device)


class _CupyArrays:
    dtypes: tuple[str, ...] = ("float16",)  # numpy has no bfloat16, and so has cupy

    def __init__(self, device: int) -> None:
        cupy: Any = import_module("cupy")
        self._cupy = cupy
        self._device = cupy.cuda.Device(device)
        try:
            self._device.use()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise _NotUsableError(f"cupy {cupy.__version__}: {error}") from error

    def put(self, values: Any) -> Any:
        return self._cupy.asarray(values)

    def get(self, tensor: Any) -> Any:
        return self._cupy.asnumpy(tensor)

    def settle(self) -> None:
        self._device.synchronize()

    def new_stream(self) -> Any:
        return self._cupy.cuda.Stream(non_blocking=True)
