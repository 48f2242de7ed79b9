"""Kind 7: calls after calls, without anything being reset."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, random_ids, random_weights

import tileoverlap as to


def random_call(rng: np.random.Generator, layer: Layer, tokens: list[int]) -> tuple:
    ids = [random_ids(rng, t, layer.top_k, layer.placement.experts, skipped=0.1) for t in tokens]
    return layer.random_x(rng, ids), ids, [random_weights(rng, part) for part in ids]


@pytest.mark.case("D7.1")
def test_twelve_calls_with_new_inputs_each_time():
    """D7.1: balanced, T = [3, 61], one empty source; old data would show."""
    rng = np.random.default_rng(71)
    with Layer(
        to.Placement.even(world=2, experts=4),
        top_k=2,
        max_tokens=61,
        faults=to.CpuFaults(poison=True),
    ) as layer:
        for tokens in [[16, 16], [3, 61], [0, 40]] * 4:
            layer.check(*random_call(rng, layer, tokens))


@pytest.mark.case("D7.2")
def test_a_slow_rank_gets_its_own_calls_data():
    """D7.2: rank 1 is up to 20 ms late at every step."""
    rng = np.random.default_rng(72)
    faults = [to.CpuFaults(), to.CpuFaults(max_delay_us=20_000)]
    with Layer(
        to.Placement.even(world=2, experts=2), top_k=1, max_tokens=8, faults=faults
    ) as layer:
        for _ in range(3):
            layer.check(*random_call(rng, layer, [8, 8]))


@pytest.mark.case("D7.3")
def test_thousands_of_tiny_calls_in_a_row():
    """D7.3: T = 1, many workers, no host wait between."""
    rng = np.random.default_rng(73)
    with Layer(
        to.Placement.even(world=2, experts=2),
        top_k=1,
        max_tokens=1,
        producer_threads=2,
        consumer_threads=4,
        tile=(4, 4),
    ) as layer:
        for _ in range(20):
            calls = [random_call(rng, layer, [1, 1]) for _ in range(100)]
            outs = [layer.start(*call) for call in calls]
            layer.synchronize()
            for call, out in zip(calls, outs, strict=True):
                for got, wanted in zip(out, layer.reference(*call), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
        assert layer.layers[0].epoch == 2000


@pytest.mark.case("D7.4")
@pytest.mark.parametrize("before", [2**32 - 3, 2**63 - 8])
def test_epochs_pass_the_limits_of_small_counters(before: int):
    """D7.4: preset so that five calls pass 2^32, or come close to the limit."""
    rng = np.random.default_rng(74)
    with Layer(
        to.Placement.even(world=2, experts=4),
        top_k=2,
        max_tokens=8,
        faults=to.CpuFaults(first_epoch=before),
    ) as layer:
        for _ in range(5):
            layer.check(*random_call(rng, layer, [8, 5]))


@pytest.mark.case("D7.5")
def test_small_and_large_calls_share_one_layer():
    """D7.5: T = 1 and T = 64 in turn: places depend on the maximum alone."""
    rng = np.random.default_rng(75)
    with Layer(
        to.Placement.even(world=2, experts=4),
        top_k=2,
        max_tokens=64,
        faults=to.CpuFaults(poison=True),
    ) as layer:
        for _ in range(25):
            layer.check(*random_call(rng, layer, [1, 1]))
            layer.check(*random_call(rng, layer, [64, 64]))


@pytest.mark.case("D7.6")
def test_two_calls_in_flight_do_not_mix():
    """D7.6: no host wait between; the first output is read after both."""
    rng = np.random.default_rng(76)
    with Layer(
        to.Placement.even(world=3, experts=6),
        top_k=2,
        max_tokens=16,
        faults=to.CpuFaults(max_delay_us=300, poison=True),
    ) as layer:
        calls = [random_call(rng, layer, [16, 3, 9]) for _ in range(6)]
        outs = [layer.start(*call) for call in calls]
        layer.synchronize()
        for call, out in zip(calls, outs, strict=True):
            assert to.reference.compare(out, layer.reference(*call), "float32").ok


@pytest.mark.case("D7.7")
def test_segments_that_arrive_out_of_order_are_not_read_early():
    """D7.7: three segments a peer, random delays and random order."""
    rng = np.random.default_rng(77)
    with Layer(
        to.Placement.even(world=2, experts=2),
        top_k=1,
        max_tokens=24,
        tile=(8, 8),
        consumer_threads=3,
        faults=to.CpuFaults(shuffle_seed=5, max_delay_us=2000, poison=True),
    ) as layer:
        for _ in range(10):
            layer.check(*random_call(rng, layer, [24, 24]))


@pytest.mark.case("D7.9")
def test_two_layers_of_one_world_are_independent():
    """D7.9: calls interleaved."""
    rng = np.random.default_rng(79)
    placement = to.Placement.even(world=2, experts=4)
    executors = [to.CpuExecutor(transport) for transport in to.World(2).transports]
    options = {"placement": placement, "dtype": "float32", "expert": "single", "top_k": 2}
    layers = [
        [
            e.prepare_layer(hidden=16, inner=8, max_tokens=9, tile=(8, 8), **options)
            for e in executors
        ]
        for _ in range(2)
    ]
    down = [rng.standard_normal((4, 16, 8), np.float32) for _ in range(2)]
    started = []
    for number in range(12):
        which = number % 2
        ids = [random_ids(rng, 9, 2, 4) for _ in range(2)]
        x = [rng.standard_normal((9, 8), np.float32) for _ in range(2)]
        weights = [random_weights(rng, part) for part in ids]
        outs = [np.full((9, 16), np.nan, np.float32) for _ in range(2)]
        for rank in range(2):
            layers[which][rank].forward(
                x[rank],
                ids[rank],
                weights[rank],
                down=down[which][2 * rank : 2 * rank + 2],
                out=outs[rank],
            )
        started.append((which, x, ids, weights, outs))
    for pair in layers:
        for layer in pair:
            layer.synchronize()
    for which, x, ids, weights, outs in started:
        wanted = to.reference.return_path(x, ids, weights, down=down[which])
        assert to.reference.compare(outs, wanted, "float32").ok


@pytest.mark.case("D7.10")
def test_the_first_call_of_a_poisoned_session_is_right():
    """D7.10: fresh memory is not taken as zero where rows are concerned."""
    rng = np.random.default_rng(710)
    for _ in range(5):
        with Layer(
            to.Placement.even(world=4, experts=8),
            top_k=2,
            max_tokens=8,
            faults=to.CpuFaults(poison=True),
        ) as layer:
            layer.check(*random_call(rng, layer, [8, 0, 3, 8]))
