"""What all executors share (stage execute): they prepare sessions and layers."""

from __future__ import annotations

from dataclasses import dataclass

from tileoverlap import _core
from tileoverlap._args import INT32_MAX, INT64_MAX, as_choice, as_instance, as_int, as_nanoseconds
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.placement import Placement
from tileoverlap.plan import plan_options
from tileoverlap.session import Session
from tileoverlap.transport import Transport

__all__ = ["DTYPES", "EXPERT_KINDS", "Executor", "Faults"]

DTYPES = ("float32", "bfloat16", "float16")
EXPERT_KINDS = ("single", "gelu", "silu_gate")

_UINT64_MAX = 2**64 - 1


@dataclass(frozen=True, kw_only=True)
class Faults:
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
        as_int("first_epoch", self.first_epoch, high=INT64_MAX)


class Executor:
    """Makes one rank's sessions and layers. CpuExecutor and CudaExecutor are executors."""

    def __init__(
        self, core: _core.Executor, transport: Transport, *, cuda_device: int | None = None
    ) -> None:
        self._core = core
        self.transport = transport
        self._cuda_device = cuda_device  # None: work has no streams

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
        """Makes a session: allocates, loads kernels or starts threads. Collective by order, but
        does not wait for the others.

        Args:
            placement: experts by rank.
            dtype: of rows, weights and out: "float32" (CPU only), "bfloat16" or "float16".
            k, n: GEMM depth and width of a returned row, elements; rows must be multiples of 16
                bytes.
            top_k: slots of a token.
            max_tokens: most tokens on any one rank; any number >= 0.
            tile, layout: must equal those of the plans that are run. On a GPU a tile that a kernel
                was compiled for (cuda_devices()).
            bands_per_segment, group: as for make_plan; plans may differ.
            timeout_s: limit of each wait; None: TILEOVERLAP_TIMEOUT_S.
            warmup_timeout_s: the same for the first run; None: TILEOVERLAP_WARMUP_TIMEOUT_S.
            record_timeline: keep the spans of each run.

        Raises:
            InvalidArgument: a value out of range, or a tile that no kernel has; options that differ
                from another rank's, naming both. (A rank on a GPU may be told so by its first
                call.)
            DTypeError: a dtype that this executor does not take.
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
        return Session(core, cuda_device=self._cuda_device)

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
        tile: tuple[int, int] | None = None,
        layout: str = "compact",
        bands_per_segment: int = 1,
        group: int | None = None,
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
            tile, group: as for prepare, the same on all ranks; None: on a GPU what choose_tile
                gives for max_tokens tokens, on the CPU 128 x 128 and 8.
            The others: as for prepare.

        Raises:
            InvalidArgument: as for prepare.
        """
        as_instance("placement", placement, Placement)
        as_choice("dtype", dtype, DTYPES)
        tokens = as_int("max_tokens", max_tokens, high=INT64_MAX)
        slots = as_int("top_k", top_k, low=1)
        depth = as_int("inner", inner, low=1, high=INT64_MAX)
        width = as_int("hidden", hidden, low=1, high=INT32_MAX)
        if tile is None or group is None:
            chosen = self._choose_tile(
                placement, dtype, depth, width, min(tokens * slots, INT64_MAX)
            )
            tile, group = tile or chosen[0], chosen[1] if group is None else group
        core = self._core.prepare_layer(
            placement=placement._core,
            dtype=dtype,
            expert=as_choice("expert", expert, EXPERT_KINDS),
            hidden=width,
            inner=depth,
            top_k=slots,
            max_tokens=tokens,
            plan=plan_options(tile, layout, bands_per_segment, group),
            timeout_ns=as_nanoseconds("timeout_s", timeout_s),
            warmup_timeout_ns=as_nanoseconds("warmup_timeout_s", warmup_timeout_s),
            record_timeline=bool(record_timeline),
        )
        return MoeLayer(core, cuda_device=self._cuda_device)

    def _choose_tile(
        self, placement: Placement, dtype: str, k: int, n: int, rows: int
    ) -> tuple[tuple[int, int], int]:
        """Tile and group of a layer that leaves them open; `rows`: a rank's, on average."""
        del placement, dtype, k, n, rows
        return (128, 128), 8

    def __repr__(self) -> str:
        return repr(self._core)
