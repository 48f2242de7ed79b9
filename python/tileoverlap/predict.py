"""How long the operator will take on a GPU and its links, from the counts alone (stage predict)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tileoverlap import _core
from tileoverlap._args import as_instance, as_int
from tileoverlap.counts import RouteCounts
from tileoverlap.placement import Placement
from tileoverlap.plan import plan_options

__all__ = [
    "AS_GOOD",
    "GpuRates",
    "LinkRates",
    "MeasuredGemm",
    "Operator",
    "PredictedRank",
    "Prediction",
    "RankPrediction",
    "SplitChoice",
    "choose_split",
    "even_counts",
    "gpu_rates",
    "predict",
    "predict_rank",
]


AS_GOOD = 1.002
"""The fewest SMs whose time is within this of the best are chosen."""


class MeasuredGemm(NamedTuple):
    """A GEMM that was measured on all SMs of a GPU."""

    rows: int
    """Copies, spread evenly over the experts."""
    experts: int
    k: int
    n: int
    tile_m: int
    tile_n: int
    us: float


@dataclass(frozen=True, kw_only=True)
class GpuRates:
    """How fast a GPU's kernels are. Change a field with dataclasses.replace."""

    device: str
    capability: int
    """90 for 9.0."""
    sms: int
    matmul_tflops: float
    """Of 16-bit products; as memory_gbs the scale by which unmeasured GEMMs differ from measured
    ones."""
    memory_gbs: float
    clock_relief: float
    """A tile takes (s / S) ** clock_relief as long where s of S SMs compute."""
    ship_gbs: float
    """That one SM ships while no GEMM runs."""
    ship_share: float
    """Of it, beside a GEMM."""
    lane_gbs: float
    """That one lane of it ships at most."""
    lanes: int
    """Of an SM that ships."""
    gemm_slowdown: float
    """A tile takes 1 + this as long beside the consumer."""
    start_us: float
    """Until a kernel's first tile or row."""
    tile_us: float
    """From the end of a tile's time to its flag."""
    end_us: float
    """From the last row's landing to the end of the call."""
    gemm_scale: float = 1.0
    """Of this GPU's GEMM times over the measured ones, as seen now."""
    gemms: tuple[MeasuredGemm, ...] = ()
    source: str = "given"
    """"measured on ...", or "as on ..., by SMs": another GPU's, as many times as it has SMs."""

    def gemm_us(
        self, *, bands: int, experts: int, k: int, n: int, tile: tuple[int, int], sms: int
    ) -> float:
        """What a GEMM takes on `sms` SMs, nothing beside it.

        Args:
            bands: of tile[0] rows, of all experts of the rank.
            experts: whose weights are read.
        """
        return _core.gemm_us(_rates_to_core(self), bands, experts, k, n, *tile, sms)


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """How fast rows go from rank to rank. Ranks [0, domain), [domain, 2 * domain), ... reach each
    other's memory (NVLink); between these domains there is a network."""

    gbs: float = 450.0
    """That a rank sends inside its domain, and that it receives; 0: as fast as SMs ship."""
    latency_us: float = 1.0
    domain: int = 0
    """Ranks; 0: all of them."""
    network_gbs: float = 50.0
    """That a rank sends into the network, and that it receives."""
    network_latency_us: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Operator:
    """GEMM and return of W ranks, whose times are asked for."""

    placement: Placement
    counts: RouteCounts
    k: int
    n: int
    """Depth, and width of a returned row."""
    gpu: GpuRates
    link: LinkRates = LinkRates()
    tile: tuple[int, int] = (128, 128)
    layout: str = "compact"
    bands_per_segment: int = 1
    group: int = 8
    sms: int = 0
    """Of each rank; 0: all of its GPU."""
    element_bytes: int = 2


@dataclass(frozen=True)
class RankPrediction:
    """One rank, from the moment at which its rows are in place; us."""

    rank: int
    gemm_us: float
    """The GEMM alone, on all SMs."""
    copy_us: float
    """Its return alone."""
    gemm_end_us: float
    """Overlapped: when the last tile is done."""
    sent_us: float
    """When the last row that it sends has left."""
    landed_us: float
    """When the last row that it owns has landed."""
    shipped_bytes: int


@dataclass(frozen=True)
class Prediction:
    """Of all ranks together, for one number of SMs that ship; us."""

    comm_sms: int
    gemm_us: float
    """Alone, on all SMs; the slowest rank's, as the next two."""
    copy_us: float
    serial_us: float
    """GEMM on all SMs, and then the return."""
    overlapped_us: float
    behind_us: float
    """Of that, behind the last tile of all ranks."""
    bound: float
    """(gemm + copy) / max(gemm, copy): the most that overlap can bring."""
    reached: float
    """max(gemm, copy) / overlapped."""
    overlap: float
    """1 - behind / copy."""
    ranks: tuple[RankPrediction, ...]


class PredictedRank(NamedTuple):
    """What one rank does when, while it overlaps; us."""

    band_us: npt.NDArray[np.float64]
    """[bands] in schedule order: when the band is done."""
    pieces: npt.NDArray[Any]
    """Records: peer, bytes, ready_us, begin_us, end_us."""


def gpu_rates(device: str, *, capability: int, sms: int) -> GpuRates:
    """The rates of the GPU of this name; else of one of the same compute capability (90 for 9.0),
    else of any that was measured, scaled by its SMs."""
    core = _core.gpu_rates(device, as_int("capability", capability), as_int("sms", sms, low=1))
    names = MeasuredGemm._fields
    gemms = tuple(MeasuredGemm(*(getattr(gemm, name) for name in names)) for gemm in core.gemms)
    return GpuRates(**_fields(core, GpuRates, "gemms"), gemms=gemms)


def predict(
    operator: Operator, comm_sms: Sequence[int], ranks: Sequence[int] = ()
) -> list[Prediction]:
    """One prediction for each number of SMs that ship.

    Args:
        operator: what is computed and returned.
        comm_sms: 1 .. SMs of a rank - 1 each.
        ranks: those that are looked at; none: all. Of some, only what these send is predicted.

    Raises:
        InvalidArgument: sizes or rates that are not positive, counts of another shape, a number of
            SMs that leaves none for the GEMM.
    """
    query = _query(operator)
    found = _core.predict(
        query,
        operator.counts._core,
        [as_int("comm_sms", count, low=1) for count in comm_sms],
        [as_int("ranks", rank, high=operator.placement.world - 1) for rank in ranks],
    )
    return [_prediction(core) for core in found]


class SplitChoice(NamedTuple):
    """How many SMs should ship rows."""

    comm_sms: int
    """The fewest whose time is within a five-hundredth of the best."""
    overlapped_us: float
    serial_us: float
    """GEMM on all SMs, then the return on as many as `comm_sms`."""


def choose_split(operator: Operator, ranks: Sequence[int] = ()) -> SplitChoice:
    """The number of SMs, of up to a fifth of the rank's, with which the operator is predicted to be
    fastest. `ranks` as for `predict`, which says what is raised."""
    checked = [as_int("ranks", rank, high=operator.placement.world - 1) for rank in ranks]
    core = _core.choose_split(_query(operator), operator.counts._core, checked)
    return SplitChoice(core.comm_sms, core.overlapped_us, core.serial_us)


def even_counts(placement: Placement, copies: int) -> RouteCounts:
    """`copies` of each owner, spread over all experts as evenly as whole numbers allow: what is
    expected of a call whose routing is not known yet.

    Raises:
        InvalidArgument: copies, where there is no expert.
    """
    as_instance("placement", placement, Placement)
    core = _core.even_counts(placement._core, as_int("copies", copies))
    return RouteCounts._wrap(core)


def predict_rank(operator: Operator, comm_sms: int, rank: int) -> PredictedRank:
    """What `rank` does when. Raises as `predict`."""
    checked = as_int("rank", rank, high=operator.placement.world - 1)
    core = _core.predict_rank(
        _query(operator), operator.counts._core, as_int("comm_sms", comm_sms, low=1), checked
    )
    return PredictedRank(core.band_us(), core.pieces().view(np.dtype(_core.predicted_piece_layout)))


def _prediction(core: _core.Prediction) -> Prediction:
    return Prediction(**_fields(core, Prediction, "ranks"), ranks=tuple(map(_rank, core.ranks)))


def _rank(core: _core.RankPrediction) -> RankPrediction:
    return RankPrediction(**_fields(core, RankPrediction))


def _fields(core: Any, dataclass_type: Any, *but: str) -> dict[str, Any]:
    return {
        field.name: getattr(core, field.name)
        for field in fields(dataclass_type)
        if field.name not in but
    }


def _query(operator: Operator) -> _core.PredictQuery:
    as_instance("placement", operator.placement, Placement)
    as_instance("counts", operator.counts, RouteCounts)
    link = asdict(operator.link)
    return _core.PredictQuery(
        placement=operator.placement._core,
        k=as_int("k", operator.k, low=1),
        n=as_int("n", operator.n, low=1),
        element_bytes=as_int("element_bytes", operator.element_bytes, low=1),
        plan=plan_options(
            operator.tile, operator.layout, operator.bands_per_segment, operator.group
        ),
        sms=as_int("sms", operator.sms),
        gpu=_rates_to_core(operator.gpu),
        link_gbs=float(link["gbs"]),
        link_latency_us=float(link["latency_us"]),
        domain=as_int("domain", link["domain"]),
        network_gbs=float(link["network_gbs"]),
        network_latency_us=float(link["network_latency_us"]),
    )


def _rates_to_core(rates: GpuRates) -> _core.GpuRates:
    core = _core.GpuRates()
    for name, value in _fields(rates, GpuRates, "gemms").items():
        setattr(core, name, value)
    core.gemms = [_core.MeasuredGemm(*gemm) for gemm in rates.gemms]
    return core
