"""W ranks of one layer that share this GPU, each on a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any

from tileoverlap._gpu_share import gpu_share
from tileoverlap.bench.loop_back import Choice
from tileoverlap.bench.routed import Call, input_width, up_rows
from tileoverlap.bench.shapes import Shape
from tileoverlap.capacity import size_report
from tileoverlap.cuda_executor import CudaExecutor, CudaFaults
from tileoverlap.errors import InvalidArgument
from tileoverlap.placement import Placement
from tileoverlap.transport import DeviceWorld

__all__ = ["OneGpuRanks", "check_fits"]

Launch = Callable[[], Any]
_LIMIT_S = 10.0
_FIRST_LIMIT_S = 60.0
_ELEMENT_BYTES = 2


class OneGpuRanks:
    """The layers of all ranks over one call's tensors; a context manager that closes them.

    What it launches begins behind earlier work of torch's current stream, and later work of that
    stream begins behind it. More than two ranks need CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA
    starts.
    """

    def __init__(
        self,
        torch: Any,
        call: Call,
        choice: Choice,
        *,
        dtype: str,
        comm_sms: int | None = None,
        poison: bool = False,
    ) -> None:
        """`comm_sms`: of each rank; None: the executor's default. `poison`: NaN in whatever nobody
        may read, for tests: it costs time."""
        self._torch = torch
        world = call.placement.world
        hidden, inner = call.down.shape[1:]
        self.out = call.new_output()
        """[W * T, hidden], of the last call."""
        self._tensors = [
            {**call.of_rank(rank), "out": out}
            for rank, out in enumerate(self.out.split(call.tokens))
        ]
        self._streams = [torch.cuda.Stream() for _ in range(world)]
        self._begun = torch.cuda.Event()
        self._done = [torch.cuda.Event() for _ in range(world)]
        with ExitStack() as stack:
            self._layers = [
                stack.enter_context(
                    CudaExecutor(
                        transport, comm_sms=comm_sms, faults=CudaFaults(poison=poison)
                    ).prepare_layer(
                        placement=call.placement,
                        dtype=dtype,
                        expert=call.expert,
                        hidden=hidden,
                        inner=inner,
                        top_k=call.ids.shape[1],
                        max_tokens=call.tokens,
                        timeout_s=_LIMIT_S,
                        warmup_timeout_s=_FIRST_LIMIT_S,
                        **asdict(choice),
                    )
                )
                for transport in DeviceWorld(0, world).transports
            ]
            self._open = stack.pop_all()
        self.share = gpu_share(self._layers[0])

    def call(self, mode: str) -> None:
        """One call of all ranks, "overlapped" or "serial"."""

        def start(rank: int) -> None:
            self._layers[rank].forward(**self._tensors[rank], mode=mode, stream=self._streams[rank])

        self._side_by_side(start)

    def captured(self, mode: str) -> Launch:
        """call(mode) as a CUDA graph a rank. A call must have been made before."""
        torch = self._torch
        graphs = []
        for layer, tensors, stream in zip(self._layers, self._tensors, self._streams, strict=True):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=stream):
                layer.forward(**tensors, mode=mode, stream=stream)
        return lambda: self._side_by_side(lambda rank: graphs[rank].replay())

    def settle(self) -> None:
        """Waits for the GPU. Raises what a call has failed with, WaitTimeout or CallRefused."""
        self._torch.cuda.synchronize()
        for layer in self._layers:
            layer.synchronize()

    def _side_by_side(self, start: Callable[[int], None]) -> None:
        torch = self._torch
        current = torch.cuda.current_stream()
        self._begun.record(current)
        for rank, stream in enumerate(self._streams):
            stream.wait_event(self._begun)
            with torch.cuda.stream(stream):
                start(rank)
            self._done[rank].record(stream)
        for event in self._done:
            current.wait_event(event)

    def __enter__(self) -> OneGpuRanks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open.close()


def check_fits(shape: Shape, choice: Choice, *, expert: str, dtype: str, memory_bytes: int) -> None:
    """Raises InvalidArgument where W ranks of a shape, with what their results are compared with,
    need more than `memory_bytes`: workspaces are made for any routing."""
    placement = Placement.even(world=shape.world, experts=shape.experts)
    width, up = input_width(shape, expert), up_rows(shape, expert)
    need = 0
    for rank in range(shape.world):
        for k, projected in ((width, False), (shape.k, True)):
            report = size_report(
                placement,
                rank,
                max_tokens=shape.tokens,
                top_k=shape.top_k,
                dtype=dtype,
                k=k,
                n=shape.n,
                tile=choice.tile,
                layout=choice.layout,
            )
            if projected:  # rows between the two projections
                need += report.input_bytes if up else 0
            else:
                need += report.total_bytes
    tokens = shape.world * shape.tokens
    copies = tokens * shape.top_k
    need += _ELEMENT_BYTES * (
        shape.experts * shape.n * (shape.k + up)
        + tokens * (width + 2 * shape.n)
        + copies * (width + 2 * shape.n + 2 * up)
    )
    need += 8 * tokens * shape.n  # the reference, in float64
    if need > memory_bytes:
        raise InvalidArgument(
            f"{shape.world} ranks of {shape.name} need about {need / 2**30:.0f} GiB on one GPU "
            f"that has {memory_bytes / 2**30:.0f} GiB"
        )
