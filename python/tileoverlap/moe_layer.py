"""A whole expert layer of one rank (stage execute)."""

from __future__ import annotations

import contextlib

from tileoverlap import _core
from tileoverlap._calls import Calls, run_mode
from tileoverlap._dlpack import TensorLike, WeightsLike, as_output, as_tensor, as_weights
from tileoverlap._stream import StreamLike, launch_stream
from tileoverlap.errors import Error, InvalidArgument

__all__ = ["MoeLayer"]


class MoeLayer(Calls[_core.MoeLayer]):
    """One rank's whole expert layer: dispatch, experts, return, weighted sum.

    Made by an executor's prepare_layer. Every forward() is one collective step of all ranks,
    whether it succeeds or raises. Also a context manager that closes.
    """

    def forward(
        self,
        x: TensorLike,
        topk_ids: TensorLike,
        topk_weights: TensorLike,
        *,
        down: WeightsLike,
        up: WeightsLike | None = None,
        out: TensorLike,
        mode: str = "overlapped",
        stream: StreamLike | None = None,
    ) -> None:
        """Starts a call and returns; calls complete in order. `out` is ready after synchronize().

        All tensors are kept alive until then and must not be changed before. On a GPU the call is
        work of `stream`, as in Session.run. It can be captured in a CUDA graph, the first call of a
        layer cannot; between replays the tensors' contents may change, not their places or sizes,
        and it is the caller who keeps them.

        Args:
            x: [T, hidden], or [T, inner] where the expert is "single".
            topk_ids: [T, top_k] int32 or int64, -1 = no copy; the same expert twice is two copies.
            topk_weights: [T, top_k] float32, applied as they are: nothing is renormalised.
            down: [experts on this rank, hidden, inner].
            up: [experts on this rank, inner, hidden] for "gelu", [.., 2 * inner, hidden] with the
                gate first for "silu_gate", None for "single". Both also as a list of tensors, one
                an expert, with rows the same stride apart.
            out: [T, hidden], written; tokens without a copy become zero.
            mode: "overlapped" or "serial", for the same bits.
            stream: as for Session.run.

        Raises:
            DTypeError, InvalidArgument, CapacityError: nothing was written on any rank; the other
                ranks' calls end with CallRefused and the layer stays usable. On a GPU, ids out of
                range are found by the device and raised by synchronize().
            WaitTimeout: an earlier call has failed.
        """
        core = self._core
        address = 0  # a call that is refused waits for nobody: any stream will do
        try:
            # First: producers are asked for their tensors when it is certain which stream reads
            # them.
            address = launch_stream(stream, out, self._cuda_device)
            tensors = (
                as_tensor(x, "x"),
                as_tensor(topk_ids, "topk_ids"),
                as_tensor(topk_weights, "topk_weights"),
            )
            first = ([], False) if up is None else as_weights(up, "up")
            second = as_weights(down, "down")
            result = as_output(out, "out")
            chosen_mode = run_mode(mode)
        except InvalidArgument:
            # The other ranks are in this step already: without our part they would wait for their
            # limit.
            with contextlib.suppress(Error):
                none: tuple[list[_core.Tensor], bool] = [], False
                core.forward(
                    None, None, None, *none, *none, None, _core.RunMode.overlapped, address
                )
            raise
        self._make_room()
        core.forward(*tensors, *first, *second, result, chosen_mode, address)
        self._keep(*tensors, first, second, result)

    def __enter__(self) -> MoeLayer:
        return self
