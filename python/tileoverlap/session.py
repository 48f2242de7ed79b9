"""The return path of one rank (stage execute)."""

from __future__ import annotations

from tileoverlap import _core
from tileoverlap._args import as_instance
from tileoverlap._calls import Calls, run_mode
from tileoverlap._dlpack import TensorLike, as_output, as_tensor
from tileoverlap.plan import Plan

__all__ = ["Session"]


class Session(Calls[_core.Session]):
    """One rank's prepared return path: expert GEMM, rows back to their owners, weighted sum.

    Made by CpuExecutor.prepare. Collective: all ranks make the same sequence of runs. Calls from
    several threads are ordered, never interleaved. Also a context manager that closes.
    """

    def run(
        self,
        plan: Plan,
        rows: TensorLike,
        weights: TensorLike,
        topk_ids: TensorLike,
        topk_weights: TensorLike,
        *,
        out: TensorLike,
        mode: str = "overlapped",
    ) -> None:
        """Starts a run and returns; runs complete in order. `out` is ready after synchronize().

        All tensors are kept alive until then and must not be changed before. Rows of all of them
        must be contiguous; outer strides may be larger.

        Args:
            plan: this rank's.
            rows: [at least plan.rows, k] in the plan's row order; rows without a copy may hold
                anything.
            weights: [experts on this rank, n, k].
            topk_ids: [T, top_k] int32 or int64, -1 = no copy: the ids that the plan was made from.
            topk_weights: [T, top_k] float32.
            out: [T, n], written; tokens without a copy become zero.
            mode: "overlapped", or "serial" (the return starts when the GEMM has ended) for the same
                bits.

        Raises:
            DTypeError, InvalidArgument, CapacityError: nothing was started or written. The session
                stays usable, but the peers do not know: make the run again with what holds.
            WaitTimeout: an earlier run has failed.
        """
        tensors = (
            as_tensor(rows, "rows"),
            as_tensor(weights, "weights"),
            as_tensor(topk_ids, "topk_ids"),
            as_tensor(topk_weights, "topk_weights"),
            as_output(out, "out"),
        )
        self._core.run(as_instance("plan", plan, Plan)._core, *tensors, run_mode(mode))
        self._keep(*tensors)

    def __enter__(self) -> Session:
        return self
