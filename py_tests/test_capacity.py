"""The most that any routing can need."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tileoverlap as to


@pytest.mark.case("D5.2")
def test_bounds_of_the_padded_layout():
    """D5.2: 224 bands for distinct ids, 245 if duplicates are legal; 512 local rows."""
    common = {"max_tokens": 64, "top_k": 8, "tile_m": 128}
    assert to.max_padded_bands(32, 7, distinct=True, **common) * 128 == 28672
    assert to.max_padded_bands(32, 7, distinct=False, **common) * 128 == 31360
    # The local run is not padded between bands, and holds at most 64 * 8 rows.
    assert to.max_padded_bands(32, 1, distinct=True, **common) >= 512 // 128


@pytest.mark.case("D5.2")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("distinct", [True, False])
def test_bounds_hold_for_every_small_routing(layout: str, distinct: bool):
    """D5.2: enumerated."""
    placement = to.Placement.even(world=2, experts=2)
    tokens, top_k, tile = 2, 2, (2, 4)
    choices = [
        pair
        for pair in itertools.product(range(-1, 2), repeat=top_k)
        if not (distinct and pair[0] == pair[1] != -1)
    ]
    most = to.max_bands(
        placement, 0, max_tokens=tokens, top_k=top_k, distinct=distinct, tile=tile, layout=layout
    )
    most_segments = to.max_segments(
        placement, 0, max_tokens=tokens, top_k=top_k, distinct=distinct, tile=tile, layout=layout
    )
    seen = 0
    for first in itertools.product(choices, repeat=tokens):
        for second in itertools.product(choices, repeat=tokens):
            counts = to.count_routes(placement, [np.array(first), np.array(second)])
            plan = to.make_plan(placement, 0, counts, n=4, tile=tile, layout=layout)
            assert plan.bands <= most
            assert len(plan.segments) <= most_segments
            seen = max(seen, plan.bands)
    assert seen == most  # and is not larger than needed


@pytest.mark.case("D5.5")
@pytest.mark.parametrize("world", [2, 8])
def test_staging_does_not_grow_with_the_world(world: int):
    """D5.5: 88080384 bytes for W = 2 and W = 8."""
    report = to.size_report(
        to.Placement.even(world=world, experts=64),
        0,
        max_tokens=1024,
        top_k=6,
        dtype="bfloat16",
        k=2048,
        n=7168,
    )
    assert report.staging_bytes == 88080384
    assert report.total_bytes == sum(report[:-1])


@pytest.mark.case("D2.8")
def test_user_capacities_need_no_alignment():
    """D2.8: 672 is no multiple of the tile."""
    placement = to.Placement.even(world=2, experts=2)
    world = to.World(2)
    with to.CpuExecutor(world.transport(0)).prepare(
        placement=placement,
        dtype="bfloat16",
        k=64,
        n=64,
        top_k=2,
        max_tokens=672,
        tile=(128, 128),
        bands_per_segment=2,
    ) as session:
        assert session.sizes.staging_bytes == 672 * 2 * 64 * 2
        assert session.sizes.output_bytes % (128 * 64 * 2) == 0
        assert session.sizes.output_bytes >= 672 * 2 * 64 * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": -1}, ["max_tokens", "-1"]),
        ({"top_k": 0}, ["top_k", "0"]),
        ({"max_tokens": 2**31, "top_k": 2}, [str(2**31)]),
        ({"dtype": "float64"}, ["float64", "bfloat16"]),
        ({"n": 0}, ["n must be", "0"]),
        ({"k": 2**62, "n": 2**62}, [str(2**62)]),
    ],
)
def test_sizes_that_cannot_be_are_refused(change, words):
    options = {"max_tokens": 64, "top_k": 2, "dtype": "bfloat16", "k": 64, "n": 64, **change}
    with pytest.raises(to.InvalidArgument) as error:
        to.size_report(to.Placement.even(world=2, experts=2), 0, **options)
    assert all(word in str(error.value) for word in words), str(error.value)
