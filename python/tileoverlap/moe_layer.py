"""A whole expert layer of one rank (stage execute)."""

from __future__ import annotations

import contextlib

from tileoverlap import _core
from tileoverlap._calls import Calls, run_mode
from tileoverlap._dlpack import TensorLike, as_output, as_tensor
from tileoverlap.errors import Error, InvalidArgument

__all__ = ["MoeLayer"]


class MoeLayer(Calls[_core.MoeLayer]):
    """One rank's whole expert layer: dispatch, experts, return, weighted sum.

    Made by CpuExecutor.prepare_layer. Every forward() is one collective step of all ranks, whether
    it succeeds or raises. Also a context manager that closes.
    """

    def forward(
        self,
        x: TensorLike,
        topk_ids: TensorLike,
        topk_weights: TensorLike,
        *,
        down: TensorLike,
        up: TensorLike | None = None,
        out: TensorLike,
        mode: str = "overlapped",
    ) -> None:
        """Starts a call and returns; calls complete in order. `out` is ready after synchronize().

        All tensors are kept alive until then and must not be changed before.

        Args:
            x: [T, hidden], or [T, inner] where the expert is "single".
            topk_ids: [T, top_k] int32 or int64, -1 = no copy; the same expert twice is two copies.
            topk_weights: [T, top_k] float32, applied as they are: nothing is renormalised.
            down: [experts on this rank, hidden, inner].
            up: [experts on this rank, inner, hidden] for "gelu", [.., 2 * inner, hidden] with the
                gate first for "silu_gate", None for "single".
            out: [T, hidden], written; tokens without a copy become zero.
            mode: "overlapped" or "serial", for the same bits.

        Raises:
            DTypeError, InvalidArgument, CapacityError: nothing was written on any rank; the other
                ranks' calls end with CallRefused and the layer stays usable.
            WaitTimeout: an earlier call has failed.
        """
        core = self._core
        try:
            tensors = (
                as_tensor(x, "x"),
                as_tensor(topk_ids, "topk_ids"),
                as_tensor(topk_weights, "topk_weights"),
                None if up is None else as_tensor(up, "up"),
                as_tensor(down, "down"),
                as_output(out, "out"),
            )
            chosen_mode = run_mode(mode)
        except InvalidArgument:
            # The other ranks are in this step already: without our part they would wait for their
            # limit.
            with contextlib.suppress(Error):
                core.forward(None, None, None, None, None, None, _core.RunMode.overlapped)
            raise
        core.forward(*tensors, chosen_mode)
        self._keep(*tensors)

    def __enter__(self) -> MoeLayer:
        return self
