"""Kind 9: order and precision of the sum, NaN that must not spread."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, bits, dispatched_rows, executors, random_ids, random_weights

import tileoverlap as to


@pytest.mark.case("D9.1")
def test_bfloat16_sums_are_rounded_once():
    """D9.1: k = 8; within one bfloat16 rounding of the float64 sum of the same expert outputs."""
    rng = np.random.default_rng(91)
    hidden, tokens, experts = 512, 64, 8
    ids = np.argsort(rng.random((tokens, experts)), axis=1)
    weights = rng.random((tokens, 8), np.float32)
    with Layer(
        to.Placement.even(world=1, experts=experts),
        top_k=8,
        max_tokens=tokens,
        hidden=hidden,
        inner=hidden,
        dtype="bfloat16",
        tile=(64, 128),
    ) as layer:
        # Expert e's output is exactly scale_e * x: products of bfloat16 powers of two.
        scale = 2.0 ** np.arange(-4, 4)
        layer.down = to.to_bfloat16(
            (np.eye(hidden)[None] * scale[:, None, None]).astype(np.float32)
        )
        x = layer.random_x(rng, [ids])
        (out,) = layer.run(x, [ids], [weights])
    sums = (weights.astype(np.float64) * scale[ids]).sum(axis=1)[:, None] * x[0].float32()
    rounding = np.abs(sums) * 2.0**-8
    assert (np.abs(out.float32() - sums) <= rounding * 1.01).all()


@pytest.mark.case("D9.2")
def test_fifty_equal_calls_give_equal_bits():
    """D9.2: W = 2, k = 4, T = 333, order shuffled anew in each."""
    rng = np.random.default_rng(92)
    ids = [random_ids(rng, 333, 4, 8) for _ in range(2)]
    weights = [random_weights(rng, part) for part in ids]
    with Layer(
        to.Placement.even(world=2, experts=8),
        top_k=4,
        max_tokens=333,
        tile=(32, 16),
        producer_threads=2,
        consumer_threads=2,
        faults=to.CpuFaults(shuffle_seed=92),
    ) as layer:
        x = layer.random_x(rng, ids)
        results = {
            b"".join(bits(out).tobytes() for out in layer.run(x, ids, weights)) for _ in range(50)
        }
    assert len(results) == 1


@pytest.mark.case("D9.3")
def test_experts_without_rows_leave_no_nan():
    """D9.3: 3 of 8 experts empty, every buffer prefilled with NaN."""
    rng = np.random.default_rng(93)
    used = np.array([0, 2, 3, 5, 7, 8, 9, 10, 12, 15])
    ids = [used[rng.integers(0, len(used), (20, 3))] for _ in range(2)]
    with Layer(
        to.Placement.even(world=2, experts=16),
        top_k=3,
        max_tokens=20,
        faults=to.CpuFaults(poison=True),
    ) as layer:
        outs = layer.check_random(rng, ids)
    assert all(np.isfinite(out).all() for out in outs)


@pytest.mark.case("D9.4")
def test_skipped_slots_are_not_read_even_with_weight_zero():
    """D9.4: ids [[0, -1]], weights [[1, 0]] and [[1, NaN]]."""
    rng = np.random.default_rng(94)
    ids = np.array([[0, -1]])
    with Layer(
        to.Placement.even(world=2, experts=2),
        top_k=2,
        max_tokens=1,
        faults=to.CpuFaults(poison=True),
    ) as layer:
        x = layer.random_x(rng, [ids, ids])
        for skipped in (0, np.nan):
            weights = np.array([[1, skipped]], np.float32)
            outs = layer.check(x, [ids, ids], [weights, weights])
            assert all(np.isfinite(out).all() for out in outs)


@pytest.mark.case("D9.5")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("filling", [np.nan, np.inf, 3e38])
def test_padding_rows_may_hold_anything(layout: str, filling: float):
    """D9.5: 130 rows an owner, tile 128; padding is not read by anybody who cares, nor sent."""
    rng = np.random.default_rng(95)
    placement = to.Placement.even(world=2, experts=2)
    ids = [rng.permutation(np.repeat([0, 1], 130))[:, None] for _ in range(2)]
    counts = to.count_routes(placement, ids)
    plans = [to.make_plan(placement, r, counts, n=16, layout=layout) for r in range(2)]
    x = [rng.standard_normal((260, 8), np.float32) for _ in range(2)]
    rows = dispatched_rows(plans, ids, x)
    for part in rows:
        part[np.isnan(part)] = filling
    weights = [rng.random((260, 1), np.float32) for _ in range(2)]
    down = rng.standard_normal((2, 16, 8), np.float32)
    outs = [np.full((260, 16), np.nan, np.float32) for _ in range(2)]
    sessions = [
        executor.prepare(
            placement=placement, dtype="float32", k=8, n=16, top_k=1, max_tokens=260, layout=layout
        )
        for executor in executors(2, faults=to.CpuFaults(poison=True))
    ]
    for r, session in enumerate(sessions):
        session.run(plans[r], rows[r], down[r : r + 1], ids[r], weights[r], out=outs[r])
    for session in sessions:
        session.synchronize()
    wanted = to.reference.return_path(x, ids, weights, down=down)
    assert to.reference.compare(outs, wanted, "float32").ok


@pytest.mark.case("D9.7")
def test_tokens_without_a_copy_become_exactly_zero():
    """D9.7: T = 4, token 2 has no expert; the output held 7.0."""
    ids = np.array([[0, 1], [1, 0], [-1, -1], [0, 0]])
    with Layer(to.Placement.even(world=1, experts=2), top_k=2, max_tokens=4) as layer:
        (x,) = layer.random_x(np.random.default_rng(97), [ids])
        out = np.full((4, 16), 7, np.float32)
        layer.layers[0].forward(x, ids, np.ones((4, 2), np.float32), down=layer.down, out=out)
        layer.synchronize()
    assert (bits(out)[2] == 0).all()
    assert (out[[0, 1, 3]] != 7).all()


@pytest.mark.case("D9.2")
def test_the_result_does_not_depend_on_the_number_of_ranks():
    """D9.2: sum in slot order, whoever computed the terms."""
    rng = np.random.default_rng(98)
    ids = random_ids(rng, 24, 3, 8)
    weights = random_weights(rng, ids)
    results = []
    for world in (1, 2, 4, 8):
        with Layer(
            to.Placement.even(world=world, experts=8), top_k=3, max_tokens=24, expert="silu_gate"
        ) as layer:
            x = layer.random_x(np.random.default_rng(1), [ids])[0]
            tokens = 24 // world
            cut = [slice(r * tokens, (r + 1) * tokens) for r in range(world)]
            outs = layer.run([x[c] for c in cut], [ids[c] for c in cut], [weights[c] for c in cut])
        results.append(np.concatenate(outs))
    assert all(np.array_equal(bits(results[0]), bits(other)) for other in results[1:])
