"""The return path of one rank (stage execute)."""

from __future__ import annotations

from tileoverlap import _core
from tileoverlap._args import as_instance
from tileoverlap._calls import Calls, run_mode
from tileoverlap._dlpack import TensorLike, WeightsLike, as_output, as_tensor, as_weights
from tileoverlap._stream import StreamLike, launch_stream
from tileoverlap.plan import Plan

__all__ = ["Session"]


class Session(Calls[_core.Session]):
    """One rank's prepared return path: expert GEMM, rows back to their owners, weighted sum.

    Made by an executor's prepare. Collective: all ranks make the same sequence of runs. Calls from
    several threads are ordered, never interleaved. Also a context manager that closes.
    """

    def run(
        self,
        plan: Plan,
        rows: TensorLike,
        weights: WeightsLike,
        topk_ids: TensorLike,
        topk_weights: TensorLike,
        *,
        out: TensorLike,
        mode: str = "overlapped",
        stream: StreamLike | None = None,
    ) -> None:
        """Starts a run and returns; runs complete in order. `out` is ready after synchronize().

        All tensors are kept alive until then and must not be changed before. Rows of all of them
        must be contiguous; outer strides may be larger.

        On a GPU the run is work of `stream` like any other: it reads what earlier work of that
        stream has written, and `out` is ready for later work of it; other streams wait by an event,
        the host by synchronize(). Who never calls synchronize() has tensors of completed runs let
        go now and then, by a later run. A tensor that is held here needs no record_stream of
        torch.

        Args:
            plan: this rank's.
            rows: [at least plan.rows, k] in the plan's row order; rows without a copy may hold
                anything.
            weights: [experts on this rank, n, k], or a list of tensors [n, k], one an expert, with
                rows the same stride apart.
            topk_ids: [T, top_k] int32 or int64, -1 = no copy: the ids that the plan was made from.
            topk_weights: [T, top_k] float32.
            out: [T, n], written; tokens without a copy become zero.
            mode: "overlapped", or "serial" (the return starts when the GEMM has ended) for the same
                bits.
            stream: CUDA only: an address (0 is the legacy default stream), an object with
                ``__cuda_stream__``, a torch or a cupy stream. None: the current stream of torch or
                cupy, whose `out` is; for any other it must be given. Ranks that share a device need
                a stream each.

        Raises:
            DTypeError, InvalidArgument, CapacityError: nothing was started or written. The session
                stays usable, but the peers do not know: make the run again with what holds.
            WaitTimeout: an earlier run has failed.
        """
        # First: producers are asked for their tensors when it is certain which stream reads them.
        address = launch_stream(stream, out, self._cuda_device)
        gemm_rows = as_tensor(rows, "rows")
        experts, listed = as_weights(weights, "weights")
        tensors = (
            as_tensor(topk_ids, "topk_ids"),
            as_tensor(topk_weights, "topk_weights"),
            as_output(out, "out"),
        )
        planned = as_instance("plan", plan, Plan)._core
        chosen_mode = run_mode(mode)
        self._make_room()
        self._core.run(planned, gemm_rows, experts, listed, *tensors, chosen_mode, address)
        self._keep(gemm_rows, experts, *tensors)

    def __enter__(self) -> Session:
        return self
