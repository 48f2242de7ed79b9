"""Ranks that share one GPU, a stream each, driven by one thread; and why there may be no GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

# Two streams a rank, none of which may stand behind another; read when CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import numpy as np
import pytest
from support import LIMIT_S, Layer, assert_close, bits, nan_filled

import tileoverlap as to

DEVICE = "cuda:0"
DTYPES = ("bfloat16", "float16")


def why_no_gpu() -> str:
    """Why tests on a GPU cannot run; "" where they can."""
    if not to.cuda_devices():
        return f"needs an NVIDIA GPU: {to.why_no_cuda_device()}"
    try:
        import torch
    except ImportError:
        return "needs torch to hold tensors on the GPU"
    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"


def gpu_marks() -> list[Any]:
    """For `pytestmark`."""
    why = why_no_gpu()
    return [pytest.mark.gpu, pytest.mark.skipif(bool(why), reason=why)]


def needs_stores() -> Any:
    """A mark of tests whose GEMM stores rows at their owners: transfer="store"."""
    devices = to.cuda_devices()
    return pytest.mark.skipif(
        not devices or devices[0].capability != (9, 0),
        reason="needs a GPU of compute capability 9.0",
    )


TRANSFERS = ("ship", pytest.param("store", marks=needs_stores()))


def to_gpu(values: Any) -> Any:
    """A float or integer array or a Bf16Array as a torch tensor on the GPU."""
    import torch

    if isinstance(values, to.Bf16Array):
        words = torch.from_numpy(np.ascontiguousarray(values.bits).view(np.int16))
        return words.view(torch.bfloat16).to(DEVICE)
    return torch.from_numpy(np.ascontiguousarray(values)).to(DEVICE)


def to_host(tensor: Any) -> Any:
    """And back, when everything is complete."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return to.Bf16Array(tensor.view(torch.int16).cpu().numpy().view(np.uint16))
    return tensor.cpu().numpy()


def settle() -> None:
    import torch

    torch.cuda.synchronize()


class DeviceMemory:
    """A torch tensor with the few attributes of a numpy array that dlpack_producer reads."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.shape = tuple(tensor.shape)
        self.itemsize = tensor.element_size()
        self.strides = tuple(stride * self.itemsize for stride in tensor.stride())
        self.ctypes = SimpleNamespace(data=tensor.data_ptr())
        kinds = {"torch.int8": "i", "torch.complex64": "c", "torch.bool": "b"}
        self.dtype = SimpleNamespace(kind=kinds.get(str(tensor.dtype), "f"))

    def fill(self, value: float) -> None:
        self.tensor.fill_(value)


class GpuLayer:
    """A layer on all ranks, with the weights of `host`: the same layer on the CPU executor."""

    def __init__(
        self,
        placement: to.Placement,
        *,
        top_k: int,
        max_tokens: int,
        hidden: int = 64,
        inner: int = 32,
        expert: str = "single",
        dtype: str = "bfloat16",
        seed: int = 0,
        transfer: str = "ship",
        faults: to.CudaFaults | None = None,
        timeout_s: float = LIMIT_S,
        **plan: Any,
    ) -> None:
        import torch

        self.host = Layer(
            placement,
            top_k=top_k,
            max_tokens=max_tokens,
            hidden=hidden,
            inner=inner,
            expert=expert,
            dtype=dtype,
            seed=seed,
            timeout_s=timeout_s,
        )
        world = placement.world
        self.streams = [torch.cuda.Stream(DEVICE) for _ in range(world)]
        self.layers = [
            to.CudaExecutor(transport, transfer=transfer, faults=faults).prepare_layer(
                placement=placement,
                dtype=dtype,
                expert=expert,
                hidden=hidden,
                inner=inner,
                top_k=top_k,
                max_tokens=max_tokens,
                timeout_s=timeout_s,
                **plan,
            )
            for transport in to.DeviceWorld(0, world).transports
        ]
        mine = [self.host.mine(rank) for rank in range(world)]
        up, down = self.host.up, self.host.down
        self.up = [None if up is None else to_gpu(up[part]) for part in mine]
        self.down = [to_gpu(down[part]) for part in mine]

    def put(
        self, x: Sequence[Any], ids: Sequence[np.ndarray], weights: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """The tensors of a call, by rank; `out` is NaN."""
        call = [
            {
                "x": to_gpu(x[rank]),
                "topk_ids": to_gpu(ids[rank]),
                "topk_weights": to_gpu(weights[rank]),
                "up": self.up[rank],
                "down": self.down[rank],
                "out": to_gpu(nan_filled((len(ids[rank]), self.host.hidden), self.host.dtype)),
            }
            for rank in range(len(self.layers))
        ]
        settle()
        return call

    def start(self, call: Sequence[dict[str, Any]], mode: str = "overlapped") -> None:
        for layer, tensors, stream in zip(self.layers, call, self.streams, strict=True):
            layer.forward(**tensors, mode=mode, stream=stream)

    def synchronize(self) -> None:
        for layer in self.layers:
            layer.synchronize()

    def run(self, *inputs: Any, mode: str = "overlapped") -> list[Any]:
        """One call; its outputs on the host."""
        call = self.put(*inputs)
        self.start(call, mode)
        self.synchronize()
        return outs(call)

    def check(self, *inputs: Any, mode: str = "overlapped") -> list[Any]:
        """The same, compared with the float64 reference and with the CPU executor."""
        got = self.run(*inputs, mode=mode)
        assert_close(got, self.host.reference(*inputs), self.host.dtype)
        cpu = [to.reference.as_float64(part) for part in self.host.run(*inputs, mode=mode)]
        assert_close(got, cpu, self.host.dtype)
        return got

    def __enter__(self) -> GpuLayer:
        return self

    def __exit__(self, *_: Any) -> None:
        for layer in [*self.layers, *self.host.layers]:
            layer.close()


def outs(call: Sequence[dict[str, Any]]) -> list[Any]:
    return [to_host(tensors["out"]) for tensors in call]


def is_zero(values: Any) -> bool:
    return not bits(values).any()
