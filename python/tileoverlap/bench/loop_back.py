"""One rank's operator with its tensors, on a loop-back link."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tileoverlap import _core
from tileoverlap._args import as_choice
from tileoverlap._dlpack import as_output, as_tensor
from tileoverlap.bench.router import routing_of
from tileoverlap.bench.shapes import Shape
from tileoverlap.counts import RouteCounts, count_routes
from tileoverlap.placement import Placement
from tileoverlap.plan import Plan, make_plan
from tileoverlap.timeline import Timeline

__all__ = [
    "LINKS",
    "Choice",
    "LoopBack",
    "Tensors",
    "make_tensors",
    "rank_plan",
    "routed_counts",
    "valid_output",
]


LINKS = ("hbm", "pcie")
"""Where peers' memory lies: on the rank's own GPU, or in pinned memory of the host."""


@dataclass(frozen=True)
class Choice:
    """How a shape is computed: what a plan may choose."""

    tile: tuple[int, int] = (128, 128)
    group: int = 8
    layout: str = "compact"
    bands_per_segment: int = 1


def routed_counts(shape: Shape, mode: str) -> tuple[Placement, RouteCounts]:
    """Who sends how many copies where; `mode` as for routing_of."""
    placement = Placement.even(world=shape.world, experts=shape.experts)
    routed = routing_of(shape, placement, mode)
    return placement, count_routes(placement, [part.ids for part in routed])


def rank_plan(
    shape: Shape,
    placement: Placement,
    counts: RouteCounts,
    choice: Choice,
    rank: int | None = None,
) -> Plan:
    """`rank`: unless given the one with most rows, the first of these."""
    if rank is None:
        by_rank = np.add.reduceat(counts.array.sum(axis=0), placement.expert_begin[:-1])
        rank = int(np.argmax(by_rank))
    return make_plan(
        placement,
        rank,
        counts,
        n=shape.n,
        **asdict(choice),
    )


@dataclass(frozen=True)
class Tensors:
    """On the GPU, random; experts' rows lie packed one behind the other in `packed`, and where the
    plan wants them in `rows`."""

    rows: Any
    packed: Any
    weights: Any
    output: Any
    ends: list[int]
    """Of each expert, in `packed`."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Begin and end of each expert, in `packed`."""
        return list(zip([0, *self.ends[:-1]], self.ends, strict=True))

    def packed_output(self) -> Any:
        """Memory for the GEMM's rows, packed as `packed` is."""
        return self.packed.new_empty((len(self.packed), self.weights.shape[1]))


def make_tensors(torch: Any, plan: Plan, shape: Shape, dtype: str) -> Tensors:
    kind = getattr(torch, dtype)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def random(*sizes: int) -> Any:
        return torch.empty(sizes, device="cuda", dtype=kind).uniform_(-1, 1, generator=generator)

    experts = plan.experts
    ends = np.cumsum(experts["valid_rows"])
    packed = random(int(ends[-1]), shape.k)
    # Padding is never read by anyone who cares: NaN would show where it is.
    rows = torch.full((plan.rows, shape.k), float("nan"), device="cuda", dtype=kind)
    rows[_valid_rows(torch, plan)] = packed
    weights = random(len(experts), shape.n, shape.k)
    output = torch.empty((plan.rows, shape.n), device="cuda", dtype=kind)
    return Tensors(rows, packed, weights, output, [int(end) for end in ends])


def valid_output(torch: Any, plan: Plan, output: Any) -> Any:
    """The rows of `output` that hold copies, packed."""
    return output[_valid_rows(torch, plan)]


def _valid_rows(torch: Any, plan: Plan) -> Any:
    """The numbers of the rows that hold copies, expert by expert, on the GPU."""
    runs = [
        np.arange(run["row_begin"], run["row_begin"] + run["row_count"])
        for run in plan.runs.reshape(-1)
    ]
    return torch.from_numpy(np.concatenate(runs)).cuda()


class LoopBack:
    """Launches the parts of a rank's operator on torch's current stream."""

    def __init__(
        self,
        torch: Any,
        plan: Plan,
        shape: Shape,
        dtype: str,
        tensors: Tensors,
        link: str = LINKS[0],
    ) -> None:
        self._torch = torch
        self._tensors = tensors  # kept alive
        crossed = _core.Link[as_choice("link", link, LINKS)]
        self._core = _core.make_loop_back(plan._core, dtype, shape.k, 0, crossed)
        self._rows = as_tensor(tensors.rows, "rows")
        self._weights = as_tensor(tensors.weights, "weights")
        self._output = as_output(tensors.output, "output")
        self.sms = self._core.sms
        self.shipped_bytes = self._core.shipped_bytes
        self.kernel = self._core.kernel
        self.can_store = self._core.can_store
        self.plan = plan
        self.link = link

    @property
    def _stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def begin(self) -> None:
        self._core.begin(self._stream)

    def produce(self, sms: int, publish: bool = True) -> None:
        self._core.produce(self._rows, self._weights, self._output, sms, publish, self._stream)

    def ship(self, sms: int, wait: bool = True) -> None:
        self._core.ship(self._output, sms, wait, self._stream)

    def overlapped(self, comm_sms: int) -> None:
        self._core.overlapped(self._rows, self._weights, self._output, comm_sms, self._stream)

    def stored(self) -> None:
        """All of a call whose GEMM stores rows to their owners itself."""
        self.begin()
        self._core.stored(self._rows, self._weights, self._output, self._stream)

    def operator(self, comm_sms: int) -> None:
        """All of a call."""
        self.begin()
        self.overlapped(comm_sms)

    def timelines(self, comm_sms: int, repetitions: int) -> list[Timeline]:
        """Of as many overlapped calls."""
        self._core.record(True)
        timelines = []
        for _ in range(repetitions):
            self.operator(comm_sms)
            timelines.append(Timeline(self._core.timeline()))
        self._core.record(False)
        return timelines

    def wrong_bytes(self) -> int:
        return self._core.wrong_bytes(self._output)

    def check(self) -> None:
        self._core.check()
