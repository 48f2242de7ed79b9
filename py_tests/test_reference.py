"""The reference itself, against loops that nobody can misread."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap import reference


def expert_by_hand(kind: str, x: list[float], up, down) -> list[float]:
    if kind != "single":
        z = [sum(u * v for u, v in zip(row, x, strict=True)) for row in up]
        if kind == "gelu":
            x = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in z]
        else:
            half = len(z) // 2
            x = [g / (1 + math.exp(-g)) * u for g, u in zip(z[:half], z[half:], strict=True)]
    return [sum(d * v for d, v in zip(row, x, strict=True)) for row in down]


@pytest.mark.parametrize(("kind", "factor"), [("single", 0), ("gelu", 1), ("silu_gate", 2)])
def test_the_layer_is_a_weighted_sum_of_experts(kind: str, factor: int):
    rng = np.random.default_rng(0)
    hidden, inner, experts = 4, 3, 3
    up = rng.standard_normal((experts, factor * inner, hidden)) if factor else None
    down = rng.standard_normal((experts, hidden, inner))
    x = [rng.standard_normal((2, hidden if factor else inner)) for _ in range(2)]
    ids = [np.array([[0, 2], [-1, 1]]), np.array([[1, 1], [-1, -1]])]
    weights = [np.array([[0.5, 2.0], [np.nan, 1.0]]), np.array([[0.25, 0.5], [1.0, 1.0]])]
    got = reference.layer(x, ids, weights, up=up, down=down, expert=kind)
    for rank in range(2):
        for token in range(2):
            wanted = np.zeros(hidden)
            for slot in range(2):
                e = ids[rank][token, slot]
                if e >= 0:
                    y = expert_by_hand(
                        kind, x[rank][token].tolist(), None if up is None else up[e], down[e]
                    )
                    wanted += weights[rank][token, slot] * np.array(y)
            np.testing.assert_allclose(got[rank][token], wanted, rtol=1e-12, atol=1e-14)


def test_extreme_gates_stay_finite():
    z = np.array([[-800.0, -30, 0, 30, 800]])
    up = np.concatenate([np.eye(5), np.eye(5)])
    got = reference.expert_forward("silu_gate", z, up, np.eye(5))
    assert np.isfinite(got).all()
    assert got[0, 0] == 0
    assert got[0, 4] == 640000


def test_comparison_sees_wrong_nan_and_nonzero_tokens():
    wanted = [np.array([[1.0, -2.0], [0.0, 0.0]])]
    same = np.array([[1.0, -2.0], [0.0, 0.0]], np.float32)
    assert reference.compare([same], wanted, "float32") == (0.0, 0.0, True)
    assert reference.compare([np.zeros((0, 2))], [np.zeros((0, 2))], "float32").ok
    off = same.copy()
    off[0, 1] += 2e-4
    assert reference.compare([off], wanted, "float32").per_token == pytest.approx(1e-4, rel=1e-3)
    assert not reference.compare([off], wanted, "float32").ok
    for value in (1e-9, np.nan, np.inf):
        bad = same.copy()
        bad[1, 0] = value
        assert not reference.compare([bad], wanted, "bfloat16").ok
    with pytest.raises(to.InvalidArgument, match="int8"):
        reference.compare([same], wanted, "int8")


def test_layout_reference_on_a_case_by_hand():
    placement = to.Placement.even(world=3, experts=3)
    counts = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    laid = reference.lay_out(placement, 1, counts, tile_m=4, layout="compact")
    assert laid.owner.tolist() == [2, 0, 1]
    assert laid.row_count.tolist() == [[8, 2, 5]]
    assert laid.row_begin.tolist() == [[0, 8, 10]]
    assert laid.remote_row.tolist() == [[7, 1, 4]]
    assert laid.expert_row.tolist() == [0, 16]
    aligned = reference.lay_out(placement, 1, counts, tile_m=4, layout="owner_aligned")
    assert aligned.row_begin.tolist() == [[0, 8, 12]]
    assert aligned.expert_row.tolist() == [0, 20]
