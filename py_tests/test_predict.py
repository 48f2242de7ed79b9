"""Predictions: what must hold of them, and how near they come to what was measured."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap.predict import (
    GpuRates,
    LinkRates,
    MeasuredGemm,
    Operator,
    choose_split,
    even_counts,
    gpu_rates,
    predict,
    predict_rank,
)
from tileoverlap.predict_plot import draw_prediction

H200 = gpu_rates("NVIDIA H200", capability=90, sms=132)


def operator(world: int = 4, experts: int = 16, copies: int = 4096, **changes: object) -> Operator:
    placement = to.Placement.even(world=world, experts=experts)
    made = Operator(
        placement=placement, counts=even_counts(placement, copies), k=2048, n=4096, gpu=H200
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_rates_survive_the_way_through_the_library():
    assert isinstance(H200.gemms[0], MeasuredGemm)
    assert H200.source == "measured on NVIDIA H200"
    own = GpuRates(
        **{
            name: getattr(H200, name)
            for name in H200.__dataclass_fields__
            if name not in ("gemms", "gemm_scale", "source")
        }
    )
    assert own.gemms == ()
    assert own.gemm_scale == 1.0
    # Without a measured GEMM the time is what nothing lost would be.
    flop = 2 * 128 * 128 * 2048 * 8192
    ideal_us = flop / (own.matmul_tflops * 1e6)
    us = own.gemm_us(bands=128, experts=16, k=2048, n=8192, tile=(128, 128), sms=132)
    assert us == pytest.approx(ideal_us, rel=0.05)


def test_a_slower_gpu_takes_longer():
    one, half = operator(), operator(gpu=replace(H200, gemm_scale=2 * H200.gemm_scale))
    (fast,), (slow,) = predict(one, [8]), predict(half, [8])
    assert slow.gemm_us == pytest.approx(2 * fast.gemm_us, rel=0.03)
    assert slow.copy_us == fast.copy_us


def test_the_choice_is_the_best_of_what_is_predicted():
    shape = operator(copies=16384)
    chosen = choose_split(shape)
    found = {split.comm_sms: split.overlapped_us for split in predict(shape, range(1, 40))}
    assert chosen.overlapped_us == found[chosen.comm_sms]
    assert chosen.overlapped_us <= 1.005 * min(found.values())


def test_a_drawn_rank_sends_what_is_predicted():
    shape = operator(world=3, experts=7, copies=999)
    (split,) = predict(shape, [4])
    for rank in range(3):
        drawn = predict_rank(shape, 4, rank)
        assert drawn.pieces["bytes"].sum() == split.ranks[rank].shipped_bytes
        assert drawn.pieces["end_us"].max() == split.ranks[rank].sent_us
        assert (drawn.pieces["peer"] != rank).all()
        assert np.isfinite(drawn.band_us).all()


def test_pictures_are_drawn_also_of_nothing():
    pytest.importorskip("matplotlib")
    for copies in (0, 999):
        shape = operator(copies=copies)
        found = predict(shape, [1, 8])
        stream = io.BytesIO()
        draw_prediction(found, found[1], 0, predict_rank(shape, 8, 0), stream, "png")
        assert stream.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "comm_sms", "message"),
    [
        ({"k": 0}, 1, "k must be at least 1, got 0"),
        ({"n": -4}, 1, "n must be at least 1, got -4"),
        ({"sms": 133}, 1, "sms = 133 of a GPU that has 132"),
        ({"tile": (0, 128)}, 1, "tile"),
        ({"layout": "tight"}, 1, "layout"),
        ({"gpu": replace(H200, ship_gbs=0.0)}, 1, "ship_gbs > 0, got 0"),
        ({"link": LinkRates(domain=-1)}, 1, "domain must be at least 0, got -1"),
        ({}, 132, "comm_sms must lie in 1..131, of 132 SMs, got 132"),
        ({}, 0, "comm_sms must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], comm_sms: int, message: str):
    with pytest.raises(to.InvalidArgument) as error:
        predict(operator(**changes), [comm_sms])
    assert message in str(error.value)


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(to.InvalidArgument, match="rank"):
        predict_rank(operator(), 1, 4)
    with pytest.raises(to.InvalidArgument, match="rank"):
        predict(operator(), [1], [-1])
