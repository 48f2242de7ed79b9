"""Kind 4: what ids mean for a layer's output."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, random_ids, same_bits

import tileoverlap as to


def scaled_experts(layer: Layer) -> None:
    """Expert e multiplies by e + 1."""
    layer.down[:] = np.eye(layer.hidden, layer.inner, dtype=np.float32) * (
        np.arange(layer.placement.experts, dtype=np.float32)[:, None, None] + 1
    )


@pytest.mark.case("D4.1")
def test_skipped_slots_are_not_renormalised():
    """D4.1: token 0 gets 0.5 * f0(x0) only."""
    ids = np.array([[0, -1], [3, 2]])
    weights = np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
    x = np.ones((2, 16), np.float32)
    with Layer(to.Placement.even(world=1, experts=4), top_k=2, max_tokens=2, inner=16) as layer:
        scaled_experts(layer)
        (out,) = layer.run([x], [ids], [weights])
    assert (out[0] == 0.5).all()
    assert (out[1] == 0.25 * 4 + 0.75 * 3).all()


@pytest.mark.case("D4.2")
@pytest.mark.case("D4.4")
@pytest.mark.parametrize("bad", [-2, 4, 2**31, -(2**40) + 1])
def test_outsiders_end_the_call_on_all_ranks_and_nothing_is_written(bad: int):
    """D4.2, D4.4: the other ranks are told, and the layer works afterwards."""
    rng = np.random.default_rng(42)
    good = [random_ids(rng, 3, 2, 4) for _ in range(2)]
    weights = [np.ones((3, 2), np.float32)] * 2
    with Layer(to.Placement.even(world=2, experts=4), top_k=2, max_tokens=3) as layer:
        x = layer.random_x(rng, good)
        broken = good[1].copy()
        broken[2, 1] = bad
        outs = [np.full((3, 16), 7, np.float32) for _ in range(2)]
        layer.layers[0].forward(x[0], good[0], weights[0], down=layer.down[:2], out=outs[0])
        with pytest.raises(to.InvalidArgument, match=f"got {bad} at rank 1, token 2, slot 1"):
            layer.layers[1].forward(x[1], broken, weights[1], down=layer.down[2:], out=outs[1])
        with pytest.raises(to.CallRefused, match=f"rank 1 refused the call.*{bad}"):
            layer.layers[0].synchronize()
        layer.layers[1].synchronize()
        assert all((out == 7).all() for out in outs)
        layer.check(x, good, weights)


@pytest.mark.case("D4.3")
def test_int32_and_int64_ids_give_the_same_bits():
    """D4.3"""
    rng = np.random.default_rng(43)
    ids = [random_ids(rng, 9, 2, 8) for _ in range(2)]
    weights = [rng.random((9, 2), np.float32) for _ in range(2)]
    with Layer(to.Placement.even(world=2, experts=8), top_k=2, max_tokens=9) as layer:
        x = layer.random_x(rng, ids)
        wide = layer.run(x, ids, weights)
        narrow = layer.run(x, [part.astype(np.int32) for part in ids], weights)
    assert same_bits(wide, narrow)


@pytest.mark.case("D4.5")
def test_sliced_ids_and_weights_equal_their_copies():
    """D4.5: wide[:, :2] of [4, 8]."""
    rng = np.random.default_rng(45)
    ids = rng.integers(0, 8, (4, 8)).astype(np.int32)
    weights = rng.random((4, 8), np.float32)
    with Layer(to.Placement.even(world=1, experts=8), top_k=2, max_tokens=4) as layer:
        x = layer.random_x(rng, [ids])
        sliced = layer.run(x, [ids[:, :2]], [weights[:, :2]])
        copied = layer.run(x, [ids[:, :2].copy()], [weights[:, :2].copy()])
    assert same_bits(sliced, copied)


@pytest.mark.case("D4.6")
def test_an_expert_named_twice_counts_twice():
    """D4.6: 0.75 * f3(x)."""
    x = np.full((1, 16), 2, np.float32)
    with Layer(to.Placement.even(world=2, experts=8), top_k=2, max_tokens=1, inner=16) as layer:
        scaled_experts(layer)
        ids = np.array([[3, 3]])
        weights = np.array([[0.25, 0.5]], np.float32)
        outs = layer.run([x, x], [ids, ids], [weights, weights])
    assert all((out == 0.75 * 4 * 2).all() for out in outs)


@pytest.mark.case("D4.7")
def test_padding_tokens_are_not_sent_anywhere():
    """D4.7: 512 of 1024 tokens have only ids -1."""
    rng = np.random.default_rng(47)
    placement = to.Placement.even(world=4, experts=8)
    ids = [random_ids(rng, 1024, 2, 8) for _ in range(4)]
    for part in ids:
        part[rng.permutation(1024)[:512]] = -1
    counts = to.count_routes(placement, ids)
    plans = [to.make_plan(placement, rank, counts, n=16, tile=(64, 16)) for rank in range(4)]
    for plan in plans:
        hosts = np.concatenate([part[part >= 0] for r, part in enumerate(ids) if r != plan.rank])
        remote = np.isin(hosts, list(placement.experts_of(plan.rank))).sum()
        assert plan.segments["row_count"].sum() == remote
    with Layer(placement, top_k=2, max_tokens=1024, tile=(64, 16)) as layer:
        outs = layer.check_random(rng, ids)
    for out, part in zip(outs, ids, strict=True):
        assert (out[(part == -1).all(axis=1)] == 0).all()


@pytest.mark.case("D4.8")
def test_each_rank_combines_by_its_own_ids():
    """D4.8: the routing differs from rank to rank."""
    rng = np.random.default_rng(48)
    ids = [random_ids(rng, 20, 3, 8) for _ in range(4)]
    weights = [rng.integers(1, 5, (20, 3)).astype(np.float32) for _ in range(4)]
    x = [rng.integers(-3, 4, (20, 16)).astype(np.float32) for _ in range(4)]
    with Layer(to.Placement.even(world=4, experts=8), top_k=3, max_tokens=20, inner=16) as layer:
        scaled_experts(layer)
        outs = layer.run(x, ids, weights)
    for rank in range(4):
        assert (outs[rank] == x[rank] * (weights[rank] * (ids[rank] + 1)).sum(1)[:, None]).all()
