"""Which CUDA stream a call is launched on. The framework's objects are asked; none is imported."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tileoverlap._args import as_int
from tileoverlap.errors import DTypeError, InvalidArgument

__all__ = ["StreamLike", "launch_stream"]

_ADDRESS_MAX = 2**64 - 1
_PROTOCOL_VERSION = 0


@runtime_checkable
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


StreamLike: TypeAlias = "int | _CudaStream | Any"
"""An address (0: the legacy default stream), an object with ``__cuda_stream__``, a torch or a cupy
stream."""


def launch_stream(stream: StreamLike | None, out: Any, cuda_device: int | None) -> int:
    """The address of the stream that a call goes to.

    Args:
        stream: what the caller gave; None: the current stream of the framework that owns `out`.
        out: the call's output tensor.
        cuda_device: the rank's; None for an executor without streams.

    Raises:
        InvalidArgument: a stream for the CPU, or None where nobody can say which is current.
        DTypeError: an object that is no stream.
    """
    if cuda_device is None:
        if stream is not None:
            raise InvalidArgument(
                f"stream must be None, got {stream!r}: the CPU executor has no streams"
            )
        return 0
    if stream is None:
        return _current_stream(out, cuda_device)
    return _address(stream)


def _address(stream: Any) -> int:
    if hasattr(stream, "__cuda_stream__"):
        said = stream.__cuda_stream__()
        try:
            version, address = said
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"stream.__cuda_stream__() must return (version, address), got {said!r}"
            ) from None
        if version != _PROTOCOL_VERSION:
            raise InvalidArgument(
                f"stream speaks version {version!r} of __cuda_stream__, known is version "
                f"{_PROTOCOL_VERSION}"
            )
        return as_int("the address in stream.__cuda_stream__()", address, high=_ADDRESS_MAX)
    for attribute in ("cuda_stream", "ptr"):  # torch, cupy
        if hasattr(stream, attribute):
            return as_int(f"stream.{attribute}", getattr(stream, attribute), high=_ADDRESS_MAX)
    if isinstance(stream, bool) or not hasattr(stream, "__index__"):
        raise DTypeError(
            "stream must be an address, a torch or cupy stream, or an object with "
            f"__cuda_stream__, got {type(stream).__name__}"
        )
    return as_int("stream", stream, high=_ADDRESS_MAX)


def _current_stream(out: Any, cuda_device: int) -> int:
    # Who has not been imported owns no tensor.
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(out, torch.Tensor):
        return int(torch.cuda.current_stream(cuda_device).cuda_stream)
    if cupy is not None and isinstance(out, cupy.ndarray):
        with cupy.cuda.Device(cuda_device):  # current is meant by device
            return int(cupy.cuda.get_current_stream().ptr)
    raise InvalidArgument(
        "stream must be given: out is a "
        f"{type(out).__module__}.{type(out).__qualname__}, and only torch and cupy say which "
        "stream is current (stream=0 is the legacy default stream)"
    )
