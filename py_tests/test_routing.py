"""The router modes, as they are defined."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap import routing

PLACEMENT = to.Placement.even(world=4, experts=64)


def loads(mode: str, placement: to.Placement = PLACEMENT, **options) -> np.ndarray:
    """Copies that each rank hosts."""
    routed = to.route(mode, placement=placement, **options)
    counts = to.count_routes(placement, [part.ids for part in routed]).array.sum(axis=0)
    return np.array([counts[list(placement.experts_of(r))].sum() for r in range(placement.world)])


@pytest.mark.parametrize("top_k", [1, 2, 3, 6, 8])
def test_balanced_is_the_formula(top_k: int):
    for part in to.route("balanced", placement=PLACEMENT, tokens=100, top_k=top_k):
        step = math.ceil(64 / top_k)
        wanted = [[(t + i * step) % 64 for i in range(top_k)] for t in range(100)]
        assert part.ids.tolist() == wanted
        assert part.weights.dtype == np.float32
        assert (part.weights == np.float32(1 / top_k)).all()


def test_balanced_loads_are_equal():
    assert set(loads("balanced", tokens=8192, top_k=2)) == {16384}


@pytest.mark.parametrize(("mode", "ratio"), [("moderate_skew", 1.20), ("stress_skew", 1.50)])
def test_skewed_modes_give_the_stated_rank_loads(mode: str, ratio: float):
    load = loads(mode, tokens=8192, top_k=2)
    assert load.argmax() == 0
    assert load.max() / load.mean() == pytest.approx(ratio, abs=0.04)


@pytest.mark.parametrize("mode", ["moderate_skew", "stress_skew"])
def test_skewed_modes_name_an_expert_once_in_a_token(mode: str):
    for part in to.route(mode, placement=PLACEMENT, tokens=500, top_k=8):
        assert part.ids.min() >= 0
        assert part.ids.max() < 64
        assert (np.diff(np.sort(part.ids, axis=1), axis=1) > 0).all()


def test_expert_weights_are_the_formula():
    weights = routing.expert_weights(PLACEMENT, a=0.5, sigma=1.0).reshape(4, 16)
    assert weights.sum() == pytest.approx(1)
    assert weights.sum(axis=1) * 4 == pytest.approx([1.5, 1 + 0.5 / 3, 1 - 0.5 / 3, 0.5])
    wanted = np.exp([NormalDist().inv_cdf((j + 0.5) / 16) for j in range(16)])
    for rank in weights:
        assert np.sort(rank / rank.sum()) == pytest.approx(wanted / wanted.sum())
        assert not np.array_equal(np.sort(rank), rank)  # in an order of its own


def test_gumbel_draws_follow_the_weights():
    weights = np.array([0.5, 0.3, 0.2])
    drawn = routing.gumbel_top_k(weights, 40_000, 2, np.random.default_rng(0))
    first = np.bincount(drawn[:, 0], minlength=3) / 40_000
    assert first == pytest.approx(weights, abs=0.01)
    after_0 = drawn[drawn[:, 0] == 0, 1]
    assert np.mean(after_0 == 1) == pytest.approx(0.6, abs=0.02)  # 0.3 / (0.3 + 0.2)


def test_seeds_change_the_draws_and_nothing_else():
    def draw(seed: int) -> list:
        routed = to.route("stress_skew", placement=PLACEMENT, tokens=50, top_k=4, seed=seed)
        return [part.ids.tolist() for part in routed]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1)[0] != draw(1)[1]  # every rank draws its own


def test_one_expert_takes_everything():
    assert loads("one_expert", tokens=10, top_k=3).tolist() == [120, 0, 0, 0]


def test_tokens_may_differ_by_rank_and_be_none():
    routed = to.route("stress_skew", placement=PLACEMENT, tokens=[0, 3, 1, 7], top_k=2)
    assert [part.ids.shape for part in routed] == [(0, 2), (3, 2), (1, 2), (7, 2)]


def test_uneven_placements_and_single_ranks_work():
    uneven = to.Placement([0, 3, 3, 10])
    assert loads("moderate_skew", uneven, tokens=100, top_k=3)[1] == 0
    single = to.Placement.even(world=1, experts=5)
    assert loads("stress_skew", single, tokens=10, top_k=5).tolist() == [50]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "trace"}, ["balanced", "one_expert", "trace"]),
        ({"top_k": 0}, ["top_k", "0"]),
        ({"tokens": -1}, ["tokens", "-1"]),
        ({"tokens": [1, 2]}, ["tokens", "4", "2"]),
        ({"mode": "stress_skew", "top_k": 65}, ["65", "64"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"placement": to.Placement.even(world=4, experts=0)}, ["experts"]),
    ],
)
def test_bad_requests_are_refused(change, words):
    options = {"mode": "balanced", "placement": PLACEMENT, "tokens": 4, "top_k": 2, **change}
    with pytest.raises(to.InvalidArgument) as error:
        to.route(**options)
    assert all(word in str(error.value) for word in words), str(error.value)
