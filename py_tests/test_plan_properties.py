"""Plans of random routings against the numpy reference: same rows, all invariants."""

from __future__ import annotations

import numpy as np
import pytest
from support import random_ids

import tileoverlap as to
from tileoverlap import reference

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@st.composite
def routings(draw: st.DrawFn) -> tuple[to.Placement, list[np.ndarray], dict]:
    """A placement, the ids of each rank, and plan options."""
    world = draw(st.integers(1, 9))
    per_rank = draw(st.lists(st.integers(0, 5), min_size=world, max_size=world))
    placement = to.Placement([0, *np.cumsum(per_rank).tolist()])
    top_k = draw(st.integers(1, 8))
    tokens = draw(st.lists(st.sampled_from([0, 1, 2, 3, 17, 40]), min_size=world, max_size=world))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    hot = draw(st.booleans())
    ids = [random_ids(rng, count, top_k, placement.experts, skipped=0.1) for count in tokens]
    if hot and placement.experts:
        ids = [np.where(part >= 0, part // 4, part) for part in ids]
    options = {
        "n": draw(st.integers(1, 70)),
        "tile": (draw(st.integers(1, 20)), draw(st.integers(1, 33))),
        "bands_per_segment": draw(st.integers(1, 4)),
        "group": draw(st.integers(1, 9)),
    }
    return placement, ids, options


@given(routings(), st.sampled_from(["compact", "owner_aligned"]))
@settings(max_examples=150)
def test_plans_equal_the_reference_and_hold_all_invariants(routing, layout: str):
    placement, ids, options = routing
    counts = to.count_routes(placement, ids)
    plans = [
        to.make_plan(placement, rank, counts, layout=layout, **options)
        for rank in range(placement.world)
    ]
    assert to.check_plans(plans, counts) == []
    for rank, plan in enumerate(plans):
        wanted = reference.lay_out(
            placement, rank, counts.array, tile_m=options["tile"][0], layout=layout
        )
        assert np.array_equal(plan.runs["row_count"], wanted.row_count)
        assert np.array_equal(plan.runs["row_begin"], wanted.row_begin)
        assert np.array_equal(plan.runs["remote_row"], wanted.remote_row)
        assert np.array_equal(plan.experts["row_begin"], wanted.expert_row[:-1])
        assert np.array_equal(plan.staging_row, wanted.staging_row)
        assert plan.rows == wanted.expert_row[-1]
        assert plan.valid_rows == wanted.row_count.sum()
        assert plan.segments["row_count"].sum() == wanted.row_count[:, :-1].sum()


@given(routings(), st.sampled_from(["compact", "owner_aligned"]))
@settings(max_examples=60)
def test_copies_go_where_the_reference_says(routing, layout: str):
    placement, ids, options = routing
    counts = to.count_routes(placement, ids)
    for rank in range(placement.world):
        plan = to.make_plan(placement, rank, counts, layout=layout, **options)
        index = plan.copy_index(ids[rank])
        wanted = reference.copy_rows(
            placement, rank, counts.array, ids[rank], tile_m=options["tile"][0], layout=layout
        )
        for got, want in zip(index, wanted, strict=True):
            assert np.array_equal(got, want)


@given(routings())
@settings(max_examples=60)
def test_tile_arrays_hold_every_valid_row_once_in_each_column_tile(routing):
    placement, ids, options = routing
    counts = to.count_routes(placement, ids)
    for rank in range(placement.world):
        plan = to.make_plan(placement, rank, counts, **options)
        arrays = to.tile_arrays(plan)
        assert arrays["valid_rows"].sum() == plan.valid_rows * plan.tiles_n
        sent = arrays["dest_rank"] != rank
        assert np.array_equal(arrays["remote_offset"] == -1, ~sent)
        assert arrays["valid_rows"][sent].sum() == plan.segments["row_count"].sum() * plan.tiles_n


def test_ids_of_another_call_are_refused():
    placement = to.Placement.even(world=1, experts=4)
    plan = to.make_plan(placement, 0, to.count_routes(placement, [np.array([[0, 1]])]), n=8)
    with pytest.raises(to.InvalidArgument, match="do not belong to this plan"):
        plan.copy_index(np.array([[0, 2]]))
