"""Benchmarks on a GPU: they measure what they say, and refuse what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_support import gpu_marks

from tileoverlap.bench.checks import WrongResult, check_gemm, check_operator, check_stored
from tileoverlap.bench.layer import measure_correctness, measure_layer
from tileoverlap.bench.loop_back import (
    LINKS,
    Choice,
    LoopBack,
    make_tensors,
    rank_plan,
    routed_counts,
)
from tileoverlap.bench.one_gpu import OneGpuRanks
from tileoverlap.bench.operator import measure_operator
from tileoverlap.bench.peers import captured
from tileoverlap.bench.producer import measure_producer
from tileoverlap.bench.shapes import Shape, find_shapes
from tileoverlap.bench.timing import Variant, interleaved
from tileoverlap.bench.transport import find_link, measure_transport
from tileoverlap.cli import main
from tileoverlap.errors import InvalidArgument

pytestmark = gpu_marks()
torch: Any = pytest.importorskip("torch")


def small(
    mode: str = "balanced", layout: str = "compact", dtype: str = "bfloat16", link: str = "hbm"
) -> Any:
    (shape,) = find_shapes("2048,8,256,512")
    placement, counts = routed_counts(shape, mode)
    plan = rank_plan(shape, placement, counts, Choice(layout=layout))
    tensors = make_tensors(torch, plan, shape, dtype)
    return shape, plan, tensors, LoopBack(torch, plan, shape, dtype, tensors, link)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("mode", ["balanced", "stress_skew"])
def test_the_operator_gives_right_rows_at_their_owners(
    mode: str, layout: str, dtype: str, link: str
):
    _, _, tensors, rank = small(mode, layout, dtype, link)
    for comm_sms in (1, 8):
        check_operator(torch, rank, tensors, comm_sms, dtype)
    if rank.can_store:
        check_stored(torch, rank, tensors)


@pytest.mark.parametrize("link", LINKS)
def test_wrong_rows_are_not_reported(link: str):
    _, plan, tensors, rank = small(link=link)
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


def test_rows_that_cross_pcie_take_longer_and_few_sms_suffice():
    (shape,) = find_shapes("2048,8,256,4096")
    rows = [
        measure_operator(torch, shape, Choice(), comm_sms=4, repetitions=5, link=link)
        for link in LINKS
    ]
    assert [row["link"] for row in rows] == list(LINKS)
    assert rows[0].keys() == rows[1].keys()
    assert rows[1]["copy_us"] > rows[0]["copy_us"]
    assert 1 <= find_link(torch, 400.0, link="pcie") <= 4


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


# ---- the layer of several ranks ------------------------------------------------------------------

LAYER = Shape("small layer", world=2, experts=8, top_k=2, tokens=700, n=512, k=256)


@pytest.mark.parametrize("mode", ["balanced", "stress_skew"])
@pytest.mark.parametrize("expert", ["single", "gelu", "silu_gate"])
def test_a_layer_gives_a_row(expert: str, mode: str):
    row = measure_layer(torch, LAYER, Choice(), mode=mode, expert=expert, repetitions=3)
    for name in ("serial", "b1", "ours", "ours_graph", "torch_loop"):
        assert 0 < row[f"{name}_p10_us"] <= row[f"{name}_us"] <= row[f"{name}_p90_us"]
    assert (row["expert"], row["mode"], row["world"]) == (expert, mode, 2)
    assert row["sms_a_rank"] > row["comm_sms"] > 0
    assert row["relative_l2"] < 8e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("mode", ["balanced", "moderate_skew", "stress_skew", "one_expert"])
def test_overlapped_and_serial_layers_are_right(mode: str, layout: str, dtype: str):
    row = measure_correctness(
        torch, LAYER, Choice(layout=layout), comm_sms=3, mode=mode, dtype=dtype
    )
    assert row["ok"], row
    assert row["bit_equal"]
    assert row["comm_sms"] == 3


def spoil_overlapped(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Changes the output behind each overlapped call."""
    call = OneGpuRanks.call

    def spoiled(self: OneGpuRanks, mode: str) -> None:
        call(self, mode)
        if mode == "overlapped":
            change(self.out)

    monkeypatch.setattr(OneGpuRanks, "call", spoiled)


def test_no_time_is_reported_of_a_layer_that_is_wrong(monkeypatch: pytest.MonkeyPatch):
    def flip(out: Any) -> None:
        out.view(torch.int16)[5, 7] ^= 1

    spoil_overlapped(monkeypatch, flip)
    with pytest.raises(WrongResult, match=r"bits differ.*ours"):
        measure_layer(torch, LAYER, Choice(), repetitions=1)
    row = measure_correctness(torch, LAYER, Choice())
    assert (row["bit_equal"], row["ok"]) == (False, False)


def test_a_wrong_result_ends_the_command_with_1_and_is_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["bench", "correctness", "--shapes", "512,4,128,256"]
    files = [tmp_path / name for name in ("right.json", "wrong.json")]
    assert main([*arguments, "--json", str(files[0])]) == 0
    assert "1 of 1 are right" in capsys.readouterr().out
    spoil_overlapped(monkeypatch, lambda out: out[0].fill_(float("nan")))
    assert main([*arguments, "--json", str(files[1])]) == 1
    assert "0 of 1 are right" in capsys.readouterr().out
    results = [json.loads(file.read_text()) for file in files]
    assert [result["ok"] for result in results] == [True, False]
    assert results[1]["rows"][0]["per_token"] is None  # infinite
