"""One MoE layer, run again and again and compared with the float64 reference: on all ranks in this
process, or on one in each of several."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap import reference
from tileoverlap._calls import MODES
from tileoverlap.bfloat16 import Bf16Array, to_bfloat16
from tileoverlap.capacity import size_report
from tileoverlap.cli._machine import Machine, Values
from tileoverlap.cli._measured import Measured, OperatorTimes, of_all_ranks, worse
from tileoverlap.cli._workload import Workload
from tileoverlap.moe_layer import MoeLayer
from tileoverlap.progress import Progress
from tileoverlap.timeline import overlap_times

__all__ = ["ELEMENT_BYTES", "Case", "measure"]

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Case:
    """What is run."""

    workload: Workload
    hidden: int
    inner: int
    dtype: str
    expert: str
    plan: dict[str, Any]
    machine: Machine
    iterations: int
    timeout_s: float

    @property
    def input_width(self) -> int:
        return self.inner if self.expert == "single" else self.hidden

    @property
    def up_rows(self) -> int:
        """Output rows of the first projection; 0 where there is none."""
        return {"single": 0, "gelu": self.inner, "silu_gate": 2 * self.inner}[self.expert]


def measure(case: Case) -> Measured:
    """Runs `case`: one warm-up in each mode, then the iterations, overlapped and serial in turn.

    Every iteration moves all tokens on by one row, so that what an earlier one left behind is
    wrong.
    """
    here = case.machine.ranks_here(case.workload.placement.world)
    routed = [case.workload.routed[rank] for rank in here]
    steps = 1 + len(MODES) * (case.iterations + 1)
    with ExitStack() as stack:
        layers = [stack.enter_context(layer) for layer in _prepare(case)]
        progress = stack.enter_context(Progress(steps, "reference"))
        data = _Data(case)
        wanted = reference.layer(
            [data.x[rank] for rank in here],
            [part.ids for part in routed],
            [part.weights for part in routed],
            up=data.up,
            down=data.down,
            expert=case.expert,
        )
        progress.step("layer")
        weights = [_weights_of(case, data, rank) for rank in here]
        result = Measured(
            {mode: OperatorTimes() for mode in MODES},
            True,
            reference.Comparison(0.0, 0.0, True),
            [],
            case.machine.facts(layers),
        )
        for iteration in range(case.iterations + 1):
            bits = {}
            for mode in MODES:
                times = result.times[mode] if iteration else None
                out = _run(case, layers, _inputs(case, data, weights, iteration), mode, times)
                moved = [np.roll(part, iteration, axis=0) for part in wanted]
                result.comparison = worse(
                    result.comparison, reference.compare(out, moved, case.dtype)
                )
                bits[mode] = [_bits(part) for part in out]
                if mode == "overlapped":
                    result.timelines = [layer.timeline() for layer in layers]
                progress.step()
            result.bit_equal &= all(
                np.array_equal(overlapped, serial)
                for overlapped, serial in zip(bits["overlapped"], bits["serial"], strict=True)
            )
        # While the layers are open: a rank that closes has no part in the others' calls any more.
        return of_all_ranks(result, case.machine.gather)


class _Data:
    """Random tensors of all ranks."""

    def __init__(self, case: Case) -> None:
        rng = np.random.default_rng(case.workload.seed)
        self._dtype = case.dtype
        experts = case.workload.placement.experts
        self.x = [
            self._normal(rng, (len(part.ids), case.input_width), 1.0)
            for part in case.workload.routed
        ]
        # Scaled so that rows keep their size through both projections.
        self.up = (
            self._normal(rng, (experts, case.up_rows, case.hidden), case.hidden**-0.5)
            if case.up_rows
            else None
        )
        self.down = self._normal(rng, (experts, case.hidden, case.inner), case.inner**-0.5)

    def _normal(self, rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Values:
        values = rng.standard_normal(shape, np.float32) * np.float32(scale)
        return (
            to_bfloat16(values)
            if self._dtype == "bfloat16"
            else values.astype(self._dtype, copy=False)
        )


def _prepare(case: Case) -> list[MoeLayer]:
    placement = case.workload.placement
    most = max(len(part.ids) for part in case.workload.routed)
    return [
        executor.prepare_layer(
            placement=placement,
            dtype=case.dtype,
            expert=case.expert,
            hidden=case.hidden,
            inner=case.inner,
            top_k=case.workload.top_k,
            max_tokens=most,
            timeout_s=case.timeout_s,
            record_timeline=True,
            **case.plan,
        )
        for executor in case.machine.executors(placement.world, _shared_bytes(case, most))
    ]


def _shared_bytes(case: Case, max_tokens: int) -> int:
    """Enough of each rank's memory for what others write into it."""
    placement = case.workload.placement
    room = (1 << 20) + placement.world * (1 << 12)  # counters, mailboxes and alignment
    return room + max(
        report.staging_bytes + report.input_bytes
        for report in (
            size_report(
                placement,
                rank,
                max_tokens=max_tokens,
                top_k=case.workload.top_k,
                dtype=case.dtype,
                k=case.input_width,
                n=case.hidden,
                tile=case.plan["tile"],
                layout=case.plan["layout"],
            )
            for rank in range(placement.world)
        )
    )


def _weights_of(case: Case, data: _Data, rank: int) -> dict[str, Any]:
    """The weights of a rank's experts, as forward() takes them."""
    experts = case.workload.placement.experts_of(rank)
    mine = slice(experts.start, experts.stop)
    put = case.machine.put
    return {"up": None if data.up is None else put(data.up[mine]), "down": put(data.down[mine])}


def _inputs(
    case: Case, data: _Data, weights: list[dict[str, Any]], iteration: int
) -> list[dict[str, Any]]:
    """All tensors of a call, of the ranks of this process."""
    put = case.machine.put
    here = case.machine.ranks_here(case.workload.placement.world)
    return [
        {
            "x": put(_roll(data.x[rank], iteration)),
            "topk_ids": put(np.roll(part.ids, iteration, axis=0)),
            "topk_weights": put(np.roll(part.weights, iteration, axis=0)),
            "out": put(_not_a_number((len(part.ids), case.hidden), case.dtype)),
            **mine,
        }
        for rank, part, mine in zip(
            here, (case.workload.routed[rank] for rank in here), weights, strict=True
        )
    ]


def _run(
    case: Case,
    layers: list[MoeLayer],
    inputs: list[dict[str, Any]],
    mode: str,
    times: OperatorTimes | None,
) -> list[Values]:
    """One call of the ranks of this process; the outputs."""
    machine = case.machine
    machine.settle()
    begin = time.monotonic_ns()
    for index, layer in enumerate(layers):
        layer.forward(**inputs[index], **machine.keywords(index), mode=mode)
    for layer in layers:
        layer.synchronize()
    if times is not None:
        _record(times, begin, time.monotonic_ns(), layers)
    return [machine.get(tensors["out"]) for tensors in inputs]


def _record(times: OperatorTimes, begin: int, end: int, layers: list[MoeLayer]) -> None:
    by_rank = [overlap_times([layer.timeline()]) for layer in layers]
    times.begin.append(begin)
    times.end.append(end)
    times.gemm.append(max(max(t.gemm_end_ns - t.first_ns, 0) for t in by_rank))
    times.after_gemm.append(max(t.landed_after_ns for t in by_rank))
    times.operator.append(max(max(t.gemm_end_ns, t.landed_ns) - t.first_ns for t in by_rank))


def _roll(values: Values, by: int) -> Values:
    if isinstance(values, Bf16Array):
        return Bf16Array(np.roll(values.bits, by, axis=0))
    return np.roll(values, by, axis=0)


def _not_a_number(shape: tuple[int, int], dtype: str) -> Values:
    if dtype == "bfloat16":
        return Bf16Array(np.full(shape, 0x7FC0, np.uint16))
    return np.full(shape, np.nan, dtype)


def _bits(values: Values) -> npt.NDArray[Any]:
    if isinstance(values, Bf16Array):
        return values.bits
    bits: npt.NDArray[Any] = values.view(f"u{values.dtype.itemsize}")
    return bits
