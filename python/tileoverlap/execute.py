"""Running plans (stage execute): an executor prepares sessions and layers, which run again and
again."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from tileoverlap import _core
from tileoverlap._args import INT32_MAX, INT64_MAX, as_choice, as_instance, as_int, as_nanoseconds
from tileoverlap._dlpack import TensorLike, as_output, as_tensor
from tileoverlap.errors import Error, InvalidArgument
from tileoverlap.placement import Placement
from tileoverlap.plan import Plan, SizeReport, plan_options, read_sizes
from tileoverlap.timeline import Timeline
from tileoverlap.transport import Transport

__all__ = ["DTYPES", "EXPERT_KINDS", "MODES", "CpuExecutor", "CpuFaults", "MoeLayer", "Session"]

DTYPES = ("float32", "bfloat16", "float16")
EXPERT_KINDS = ("single", "gelu", "silu_gate")
MODES = ("overlapped", "serial")

_UINT64_MAX = 2**64 - 1
_CoreCalls = TypeVar("_CoreCalls", _core.Session, _core.MoeLayer)


@dataclass(frozen=True, kw_only=True)
class CpuFaults:
    """Disorder and faults for tests. The defaults change nothing."""

    shuffle_seed: int = 0
    """Not 0: tiles, segments and tokens are taken in a random order, another in each run."""
    max_delay_us: int = 0
    """Above 0: a random wait of up to this between store, flag and send."""
    withhold_band: int = -1
    """From 0 on: this band of the rank is computed and never published."""
    poison: bool = False
    """Fill staging, rows and outputs with NaN whenever nobody may read them."""
    first_epoch: int = 0
    """The session's calls are counted from first_epoch + 1; equal on all ranks."""

    def __post_init__(self) -> None:
        as_int("shuffle_seed", self.shuffle_seed, high=_UINT64_MAX)
        as_int("max_delay_us", self.max_delay_us)
        as_int("withhold_band", self.withhold_band, low=-1)
        as_int("first_epoch", self.first_epoch, high=_UINT64_MAX)


class _Calls(Generic[_CoreCalls]):
    """What sessions and layers share: asynchronous calls whose tensors are kept until they have
    completed."""

    def __init__(self, core: _CoreCalls) -> None:
        self._held: _CoreCalls | None = core
        self._rank: int = core.rank
        self._lock = threading.Lock()
        # Tensors of calls that may still be running. C++ only borrows them, and a producer of
        # DLPack tensors may reuse its memory as soon as ours are gone.
        self._borrowed: list[Any] = []

    @property
    def _core(self) -> _CoreCalls:
        if self._held is None:
            raise InvalidArgument(f"the {type(self).__name__} of rank {self._rank} is closed")
        return self._held

    def synchronize(self) -> None:
        """Waits until every call so far has completed, then releases their tensors.

        Raises:
            WaitTimeout: a call has failed; nothing more can be run.
            CallRefused: a rank refused a layer's call since the last synchronize().
        """
        core = self._core
        with self._lock:
            done, self._borrowed = self._borrowed, []
        try:
            core.synchronize()
        finally:
            done.clear()

    def check(self) -> None:
        """Raises WaitTimeout if a call has failed. Does not wait."""
        self._core.check()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def epoch(self) -> int:
        """Calls started."""
        return self._core.epoch

    @property
    def sizes(self) -> SizeReport:
        """Bytes of the workspace, part by part."""
        return read_sizes(self._core.sizes())

    def timeline(self) -> Timeline:
        """Of the last completed call, where record_timeline was asked for. Call it after
        synchronize()."""
        return Timeline(self._core.timeline())

    def close(self) -> None:
        """Stops what is running, joins the worker threads and frees the workspace. Peers that still
        need this rank get a WaitTimeout. Closing twice is fine; so is leaving it to the garbage
        collector."""
        self._held = None  # the last reference: C++ stops and joins here
        self._borrowed = []

    def _keep(self, *tensors: Any) -> None:
        with self._lock:
            self._borrowed.append(tensors)

    def __del__(self) -> None:
        if hasattr(self, "_borrowed"):
            self.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            repr(self._held)
            if self._held is not None
            else f"{type(self).__name__}(rank={self._rank}, closed)"
        )


class Session(_Calls[_core.Session]):
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
        """Starts a run and returns; runs of one session complete in order. `out` is ready after
        synchronize().

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
            DTypeError, InvalidArgument, CapacityError: nothing was started or written; the session
                stays usable.
            WaitTimeout: an earlier run has failed.
        """
        tensors = (
            as_tensor(rows, "rows"),
            as_tensor(weights, "weights"),
            as_tensor(topk_ids, "topk_ids"),
            as_tensor(topk_weights, "topk_weights"),
            as_output(out, "out"),
        )
        self._core.run(as_instance("plan", plan, Plan)._core, *tensors, _mode(mode))
        self._keep(*tensors)

    def __enter__(self) -> Session:
        return self


class MoeLayer(_Calls[_core.MoeLayer]):
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
            run_mode = _mode(mode)
        except InvalidArgument:
            # The other ranks are in this step already: without our part they would wait for their
            # limit.
            with contextlib.suppress(Error):
                core.forward(None, None, None, None, None, None, _core.RunMode.overlapped)
            raise
        core.forward(*tensors, run_mode)
        self._keep(*tensors)

    def __enter__(self) -> MoeLayer:
        return self


class CpuExecutor:
    """The executor for machines without a GPU: threads in place of kernels, the same plan, flags,
    epochs, counters, credits and limits. Results do not depend on thread counts or faults."""

    def __init__(
        self,
        transport: Transport,
        *,
        producer_threads: int = 1,
        consumer_threads: int = 1,
        faults: CpuFaults | None = None,
    ) -> None:
        """Makes one rank's executor.

        Args:
            transport: this rank's.
            producer_threads, consumer_threads: a rank, > 0.
            faults: disorder for tests.

        Raises:
            InvalidArgument: a count that is not positive.
        """
        as_instance("transport", transport, Transport)
        chosen = CpuFaults() if faults is None else as_instance("faults", faults, CpuFaults)
        self.transport = transport
        self._core = _core.make_cpu_executor(
            transport._core,
            producer_threads=as_int("producer_threads", producer_threads, low=1),
            consumer_threads=as_int("consumer_threads", consumer_threads, low=1),
            **asdict(chosen),
        )

    def prepare(
        self,
        *,
        placement: Placement,
        dtype: str,
        k: int,
        n: int,
        top_k: int,
        max_tokens: int,
        tile: tuple[int, int] = (128, 128),
        layout: str = "compact",
        bands_per_segment: int = 1,
        group: int = 8,
        timeout_s: float | None = None,
        warmup_timeout_s: float | None = None,
        record_timeline: bool = False,
    ) -> Session:
        """Makes a session: allocates, starts threads. Collective by order, but does not wait for
        the others.

        Args:
            placement: experts by rank.
            dtype: of rows, weights and out: "float32", "bfloat16" or "float16".
            k, n: GEMM depth and width of a returned row, elements; rows must be multiples of 16
                bytes.
            top_k: slots of a token.
            max_tokens: most tokens on any one rank; any number >= 0.
            tile, layout: must equal those of the plans that are run.
            bands_per_segment, group: as for make_plan; plans may differ.
            timeout_s: limit of each wait; None: TILEOVERLAP_TIMEOUT_S.
            warmup_timeout_s: the same for the first run; None: TILEOVERLAP_WARMUP_TIMEOUT_S.
            record_timeline: keep the spans of each run.

        Raises:
            InvalidArgument: a value out of range; options that differ from another rank's, naming
                both.
        """
        core = self._core.prepare(
            placement=as_instance("placement", placement, Placement)._core,
            dtype=as_choice("dtype", dtype, DTYPES),
            k=as_int("k", k, low=1, high=INT64_MAX),
            n=as_int("n", n, low=1, high=INT32_MAX),
            top_k=as_int("top_k", top_k, low=1),
            max_tokens=as_int("max_tokens", max_tokens, high=INT64_MAX),
            plan=plan_options(tile, layout, bands_per_segment, group),
            timeout_ns=as_nanoseconds("timeout_s", timeout_s),
            warmup_timeout_ns=as_nanoseconds("warmup_timeout_s", warmup_timeout_s),
            record_timeline=bool(record_timeline),
        )
        return Session(core)

    def prepare_layer(
        self,
        *,
        placement: Placement,
        dtype: str,
        expert: str = "silu_gate",
        hidden: int,
        inner: int,
        top_k: int,
        max_tokens: int,
        tile: tuple[int, int] = (128, 128),
        layout: str = "compact",
        bands_per_segment: int = 1,
        group: int = 8,
        timeout_s: float | None = None,
        warmup_timeout_s: float | None = None,
        record_timeline: bool = False,
    ) -> MoeLayer:
        """Makes a layer. Collective by order, but does not wait for the others.

        Args:
            expert: "single" (down x), "gelu" (down gelu(up x)) or "silu_gate" (down (silu(gate x) *
                (up x))).
            hidden: width of out, and of x where there is a first projection; rows a multiple of 16
                bytes.
            inner: depth of the returned GEMM; likewise.
            The others: as for prepare.

        Raises:
            InvalidArgument: as for prepare.
        """
        core = self._core.prepare_layer(
            placement=as_instance("placement", placement, Placement)._core,
            dtype=as_choice("dtype", dtype, DTYPES),
            expert=as_choice("expert", expert, EXPERT_KINDS),
            hidden=as_int("hidden", hidden, low=1, high=INT32_MAX),
            inner=as_int("inner", inner, low=1, high=INT64_MAX),
            top_k=as_int("top_k", top_k, low=1),
            max_tokens=as_int("max_tokens", max_tokens, high=INT64_MAX),
            plan=plan_options(tile, layout, bands_per_segment, group),
            timeout_ns=as_nanoseconds("timeout_s", timeout_s),
            warmup_timeout_ns=as_nanoseconds("warmup_timeout_s", warmup_timeout_s),
            record_timeline=bool(record_timeline),
        )
        return MoeLayer(core)

    def __repr__(self) -> str:
        return repr(self._core)


def _mode(mode: str) -> _core.RunMode:
    return getattr(_core.RunMode, as_choice("mode", mode, MODES))  # type: ignore[no-any-return]
