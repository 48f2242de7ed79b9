"""Random routings through the whole layer: right, overlapped equal to serial, layouts equal."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, random_ids, random_weights, same_bits

import tileoverlap as to

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@st.composite
def worlds(draw: st.DrawFn) -> dict:
    """A placement, the ids of each rank, and everything that must not change the result."""
    world = draw(st.integers(1, 9))
    per_rank = draw(st.lists(st.integers(0, 4), min_size=world, max_size=world))
    placement = to.Placement([0, *np.cumsum(per_rank).tolist()])
    top_k = draw(st.integers(1, 8))
    tokens = draw(st.lists(st.sampled_from([0, 1, 2, 5, 19]), min_size=world, max_size=world))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    ids = [random_ids(rng, count, top_k, placement.experts, skipped=0.15) for count in tokens]
    return {
        "placement": placement,
        "ids": ids,
        "rng": rng,
        "layer": {
            "top_k": top_k,
            "max_tokens": max(tokens) + draw(st.integers(0, 3)),
            "hidden": 8 * draw(st.integers(1, 6)),
            "inner": 8 * draw(st.integers(1, 4)),
            "expert": draw(st.sampled_from(["single", "gelu", "silu_gate"])),
            "dtype": draw(st.sampled_from(["float32", "bfloat16", "float16"])),
            "seed": seed,
        },
        "plan": {"tile": (draw(st.integers(1, 17)), draw(st.integers(1, 40)))},
        "free": {
            "bands_per_segment": draw(st.integers(1, 3)),
            "group": draw(st.integers(1, 9)),
            "producer_threads": draw(st.integers(1, 2)),
            "consumer_threads": draw(st.integers(1, 2)),
            "faults": to.CpuFaults(poison=True, shuffle_seed=draw(st.integers(0, 3))),
        },
    }


@given(worlds())
@settings(max_examples=120)
def test_layers_equal_the_reference_and_one_another(world: dict):
    placement, ids, rng = world["placement"], world["ids"], world["rng"]
    weights = [random_weights(rng, part) for part in ids]
    results = []
    x = None
    for layout in ("compact", "owner_aligned"):
        with Layer(
            placement, layout=layout, **world["layer"], **world["plan"], **world["free"]
        ) as layer:
            x = layer.random_x(rng, ids) if x is None else x
            results.append(layer.check(x, ids, weights))
            results.append(layer.check(x, ids, weights, mode="serial"))
    assert all(same_bits(results[0], other) for other in results[1:])


@given(worlds())
@settings(max_examples=60)
def test_threads_segments_tiles_and_groups_do_not_change_a_bit(world: dict):
    placement, ids, rng = world["placement"], world["ids"], world["rng"]
    weights = [random_weights(rng, part) for part in ids]
    with Layer(placement, **world["layer"], tile=(16, 16)) as layer:
        x = layer.random_x(rng, ids)
        wanted = layer.run(x, ids, weights)
    with Layer(placement, **world["layer"], **world["plan"], **world["free"]) as layer:
        assert same_bits(wanted, layer.run(x, ids, weights))
