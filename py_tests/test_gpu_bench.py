"""Benchmarks on a GPU: they measure what they say, and refuse what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_support import gpu_marks

from tileoverlap.bench.checks import WrongResult, check_gemm, check_operator
from tileoverlap.bench.loop_back import Choice, LoopBack, make_tensors, rank_plan, routed_counts
from tileoverlap.bench.operator import measure_operator
from tileoverlap.bench.peers import captured
from tileoverlap.bench.producer import measure_producer
from tileoverlap.bench.shapes import find_shapes
from tileoverlap.bench.timing import Variant, interleaved
from tileoverlap.bench.transport import measure_transport
from tileoverlap.errors import InvalidArgument

pytestmark = gpu_marks()
torch: Any = pytest.importorskip("torch")


def small(mode: str = "balanced", layout: str = "compact", dtype: str = "bfloat16") -> Any:
    (shape,) = find_shapes("2048,8,256,512")
    placement, counts = routed_counts(shape, mode)
    plan = rank_plan(shape, placement, counts, Choice(layout=layout))
    tensors = make_tensors(torch, plan, shape, dtype)
    return shape, plan, tensors, LoopBack(torch, plan, shape, dtype, tensors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("mode", ["balanced", "stress_skew"])
def test_the_operator_gives_right_rows_at_their_owners(mode: str, layout: str, dtype: str):
    _, _, tensors, rank = small(mode, layout, dtype)
    for comm_sms in (1, 8):
        check_operator(torch, rank, tensors, comm_sms, dtype)


def test_wrong_rows_are_not_reported():
    _, plan, tensors, rank = small()
    check_operator(torch, rank, tensors, 8, "bfloat16")
    tensors.output[0, 0] += 1
    assert rank.wrong_bytes() > 0
    rank.begin()
    rank.produce(rank.sms)
    tensors.weights.mul_(1.1)  # no longer those of the output
    with pytest.raises(WrongResult, match="relative distance"):
        check_gemm(torch, plan, tensors, "bfloat16")


def test_producer_operator_and_transport_give_rows():
    (shape,) = find_shapes("2048,8,256,512")
    (row,) = measure_producer(torch, shape, [Choice()], repetitions=3)
    assert row["flags_tflops"] > 0
    assert row["best_peer"] in ("cublas_loop", "cublas_graph", "grouped_mm", "deep_gemm")
    result = measure_operator(torch, shape, Choice(), comm_sms=4, repetitions=3)
    assert result["over_b1"] > 0
    assert {"b0_us", "b0s_us", "b1_us", "b2_2_us", "b2_4_us"} <= set(result)
    rates = measure_transport(torch, tokens=256, sms=(1, 2), repetitions=3)
    assert [rate["sms"] for rate in rates] == [1, 2]


def test_a_consumer_that_starts_first_takes_no_sm_of_the_gemm():
    """In a graph, the consumer may start before the GEMM: with CTAs on more SMs than it was given,
    CTAs of the GEMM would wait for it to end, and it for their tiles: twice the time."""
    (shape,) = find_shapes("M=16384,N=4096,E=16")
    placement, counts = routed_counts(shape, "balanced")
    plan = rank_plan(shape, placement, counts, Choice())
    tensors = make_tensors(torch, plan, shape, "bfloat16")
    rank = LoopBack(torch, plan, shape, "bfloat16", tensors)
    variants = {
        "eager": Variant(lambda: rank.operator(8)),
        "graph": Variant(captured(torch, lambda: rank.operator(8))),
    }
    times = interleaved(torch, variants, repetitions=20)
    rank.check()
    assert times["graph"].p10 < 1.4 * times["eager"].p10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rank: rank.produce(0), "sms must lie in 1"),
        (lambda rank: rank.ship(100_000), "sms must lie in 1"),
        (lambda rank: rank.overlapped(rank.sms), "comm_sms must lie in 1"),
    ],
)
def test_sms_that_are_not_there_are_refused(call: Any, message: str):
    *_, rank = small()
    with pytest.raises(InvalidArgument, match=message):
        call(rank)
