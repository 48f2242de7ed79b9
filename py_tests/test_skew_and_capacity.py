"""Kind 5: everything to one expert, unequal ranks, calls that are too large."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, dispatched_rows, executors, random_ids

import tileoverlap as to


@pytest.mark.case("D5.1")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_one_expert_takes_every_token(layout: str):
    """D5.1"""
    rng = np.random.default_rng(51)
    ids = [np.full((1024, 1), 5)] * 4
    with Layer(
        to.Placement.even(world=4, experts=8),
        top_k=1,
        max_tokens=1024,
        tile=(128, 16),
        layout=layout,
    ) as layer:
        layer.check_random(rng, ids)


@pytest.mark.case("D5.3")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_token_counts_may_differ_widely(layout: str):
    """D5.3: T = [1, 1, 1, 500], all to rank 0's experts."""
    rng = np.random.default_rng(53)
    ids = [rng.integers(0, 2, (tokens, 2)) for tokens in (1, 1, 1, 500)]
    with Layer(
        to.Placement.even(world=4, experts=8), top_k=2, max_tokens=500, layout=layout
    ) as layer:
        layer.check_random(rng, ids)


@pytest.mark.case("D5.4")
def test_a_layer_call_that_is_too_large_is_refused_and_the_layer_lives_on():
    """D5.4: names both numbers; other ranks do not hang."""
    rng = np.random.default_rng(54)
    with Layer(to.Placement.even(world=2, experts=4), top_k=2, max_tokens=6) as layer:
        ids = [random_ids(rng, 6, 2, 4), random_ids(rng, 8, 2, 4)]
        x = layer.random_x(rng, ids)
        weights = [np.ones(part.shape, np.float32) for part in ids]
        outs = [np.zeros((len(part), 16), np.float32) for part in ids]
        layer.layers[0].forward(x[0], ids[0], weights[0], down=layer.down[:2], out=outs[0])
        with pytest.raises(to.CapacityError, match=r"T = 8.*max_tokens = 6"):
            layer.layers[1].forward(x[1], ids[1], weights[1], down=layer.down[2:], out=outs[1])
        with pytest.raises(to.CallRefused, match="rank 1 refused"):
            layer.layers[0].synchronize()
        layer.check_random(rng, [ids[0], ids[0]])


@pytest.mark.case("D5.4")
def test_a_run_that_is_too_large_is_refused_on_every_rank():
    """D5.4: all ranks see it in the plan, since they all know the counts."""
    placement = to.Placement.even(world=2, experts=4)
    rng = np.random.default_rng(55)
    ids = [random_ids(rng, 2, 2, 4), random_ids(rng, 9, 2, 4)]
    counts = to.count_routes(placement, ids)
    common = {"placement": placement, "dtype": "float32", "k": 8, "n": 16, "top_k": 2}
    sessions = [e.prepare(max_tokens=6, tile=(8, 8), **common) for e in executors(2)]
    plans = [to.make_plan(placement, r, counts, n=16, tile=(8, 8)) for r in range(2)]
    x = [rng.standard_normal((len(part), 8), np.float32) for part in ids]
    rows = dispatched_rows(plans, ids, x)
    for rank, session in enumerate(sessions):
        with pytest.raises(to.CapacityError, match="6"):
            session.run(
                plans[rank],
                rows[rank],
                np.zeros((2, 16, 8), np.float32),
                ids[rank],
                np.ones(ids[rank].shape, np.float32),
                out=np.zeros((len(ids[rank]), 16), np.float32),
            )
        assert session.epoch == 0


@pytest.mark.case("D5.6")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_nothing_is_dropped_and_nothing_unwritten_is_read(layout: str):
    """D5.6: all tokens to one expert, k = 4, every buffer full of NaN."""
    rng = np.random.default_rng(56)
    ids = [np.full((33, 4), 3)] * 2
    with Layer(
        to.Placement.even(world=2, experts=4),
        top_k=4,
        max_tokens=33,
        layout=layout,
        faults=to.CpuFaults(poison=True),
    ) as layer:
        outs = layer.check_random(rng, ids)
    assert all(np.isfinite(out).all() for out in outs)
