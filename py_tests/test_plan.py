"""Stage plan: cases that can be checked by hand, and what a plan tells about itself."""

from __future__ import annotations

import numpy as np
import pytest

import tileoverlap as to


def plans_for(placement: to.Placement, counts, **options) -> list[to.Plan]:
    made = to.RouteCounts(placement, counts)
    plans = [to.make_plan(placement, r, made, **options) for r in range(placement.world)]
    assert to.check_plans(plans, made) == []
    return plans


def runs_of(plan: to.Plan) -> list[tuple[int, ...]]:
    return [tuple(run) for run in plan.runs.reshape(-1).tolist()]


COUNTS = [
    [2, 0, 3],
    [1, 4, 0],
]  # [owner, expert]; expert 0 lives on rank 0, experts 1 and 2 on rank 1
PLACEMENT = to.Placement([0, 1, 3])


def test_compact_runs_lie_back_to_back_with_the_local_one_last():
    plan = plans_for(PLACEMENT, COUNTS, n=8, tile=(4, 8))[1]
    # expert, owner, row_begin, row_count, remote_row
    assert runs_of(plan) == [
        (1, 0, 0, 0, 2),
        (1, 1, 0, 4, 1),
        (2, 0, 4, 3, 2),
        (2, 1, 7, 0, 5),
    ]
    assert (plan.valid_rows, plan.gemm_rows, plan.rows) == (7, 7, 8)
    assert plan.staging_row.tolist() == [0, 1, 5, 5]
    assert plan.returned_rows.tolist() == [1, 0]
    assert plan.dispatched_rows.tolist() == [3, 4]
    assert plan.copies_of.tolist() == [5, 5]


def test_owner_aligned_runs_of_others_start_at_bands():
    placement = to.Placement.even(world=3, experts=3)
    counts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    plan = plans_for(placement, counts, n=8, tile=(4, 8), layout="owner_aligned")[0]
    assert [run[:4] for run in runs_of(plan)] == [(0, 1, 0, 4), (0, 2, 4, 7), (0, 0, 12, 1)]
    assert (plan.valid_rows, plan.gemm_rows, plan.rows) == (12, 13, 16)


def test_remote_bands_come_first_and_the_first_segment_is_one_band():
    placement = to.Placement.even(world=2, experts=4)
    counts = [[40, 0, 0, 0], [0, 40, 0, 0]]  # rank 0: expert 0 purely local, expert 1 purely remote
    plan = plans_for(placement, counts, n=8, tile=(8, 8), bands_per_segment=4)[0]
    assert plan.order["expert"].tolist() == [1] * 5 + [0] * 5
    first, last = plan.segments[0], plan.segments[-1]
    assert first["first_band"] == first["last_band"]
    assert last["first_band"] == last["last_band"]
    assert plan.segments["row_count"].sum() == 40


@pytest.mark.case("D1.5")
def test_experts_without_rows_take_no_band():
    """D1.5: three bands, expert 0 (128 and 2 valid rows), expert 3 (5)."""
    placement = to.Placement.even(world=2, experts=8)
    counts = [[0] * 8, [130, 0, 0, 5, 0, 0, 0, 0]]
    for layout in ("compact", "owner_aligned"):
        plan = plans_for(placement, counts, n=64, layout=layout)[0]
        assert plan.order["expert"].tolist() == [0, 0, 3]
        assert plan.segments["row_count"].tolist() == [128, 2, 5]
        assert plan.segments["peer"].tolist() == [1, 1, 1]


@pytest.mark.case("D2.4")
def test_one_row_for_each_expert_and_owner():
    """D2.4: exactly one row of each remote band is put."""
    placement = to.Placement.even(world=4, experts=16)
    for plan in plans_for(placement, np.ones((4, 16), int), n=32, layout="owner_aligned"):
        assert plan.bands == 16
        assert plan.segments["row_count"].tolist() == [1] * 12


@pytest.mark.case("D5.1")
def test_every_token_of_every_rank_to_one_expert():
    """D5.1: rank 2 hosts 4096 rows in 24 remote and 8 local bands."""
    placement = to.Placement.even(world=4, experts=8)
    counts = np.zeros((4, 8), int)
    counts[:, 5] = 1024
    for layout in ("compact", "owner_aligned"):
        plans = plans_for(placement, counts, n=16, layout=layout)
        assert [plan.rows for plan in plans] == [0, 0, 4096, 0]
        assert plans[2].gemm_rows == 4096
        entry = plans[2].experts[1]
        assert (entry["bands"], entry["remote_bands"]) == (32, 24)


@pytest.mark.case("D3.1")
@pytest.mark.case("D3.4")
@pytest.mark.parametrize(
    ("row", "offset"), [(299593, 2147482624), (299594, 2147489792), (600000, 4300800000)]
)
def test_element_offsets_are_exact_beyond_32_bits(row: int, offset: int):
    """D3.1, D3.4: hidden 7168; also where an unsigned product would wrap."""
    placement = to.Placement.even(world=2, experts=1)  # on rank 0
    counts = to.RouteCounts(placement, [[0], [row + 1]])
    plan = to.make_plan(placement, 0, counts, n=7168, tile=(row + 1, 7168))
    arrays = to.tile_arrays(plan)
    assert arrays["remote_offset"].tolist() == [0]
    # One row higher in the staging: the offset of the row in question.
    counts = to.RouteCounts(to.Placement([0, 0, 2]), [[row, 1], [0, 0]])
    plan = to.make_plan(to.Placement([0, 0, 2]), 1, counts, n=7168, tile=(row + 1, 7168))
    assert to.tile_arrays(plan)["remote_offset"].tolist() == [0, offset]
    assert to.tile_arrays(plan)["remote_offset"].dtype == np.int64


@pytest.mark.case("D3.2")
def test_sizes_of_the_largest_buffers_are_64_bit():
    """D3.2: 524288 rows of 4096 end at exactly 2^31 elements."""
    report = to.size_report(
        to.Placement.even(world=1, experts=1),
        0,
        max_tokens=524288,
        top_k=1,
        dtype="bfloat16",
        k=4096,
        n=4096,
    )
    assert report.output_bytes == 2 * 2147483648
    assert report.staging_bytes == 2 * 2147483648


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, ["n must be", "0"]),
        ({"n": 2**31}, ["n must be", str(2**31)]),
        ({"n": 8.0}, ["n must be an integer", "8.0"]),
        ({"n": 8, "tile": (0, 8)}, ["tile_m", "0"]),
        ({"n": 8, "tile": 8}, ["tile", "8"]),
        ({"n": 8, "tile": (8, 8, 8)}, ["tile", "(8, 8, 8)"]),
        ({"n": 8, "layout": "padded"}, ["layout", "compact", "owner_aligned", "padded"]),
        ({"n": 8, "bands_per_segment": 0}, ["bands_per_segment", "0"]),
        ({"n": 8, "group": -1}, ["group", "-1"]),
    ],
)
def test_bad_options_are_refused_by_name_and_number(options, words):
    counts = to.RouteCounts(PLACEMENT, COUNTS)
    with pytest.raises(to.InvalidArgument) as error:
        to.make_plan(PLACEMENT, 0, counts, **options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_plans_of_other_ranks_or_counts_are_refused():
    counts = to.RouteCounts(PLACEMENT, COUNTS)
    with pytest.raises(to.InvalidArgument, match="rank must be at most 1, got 2"):
        to.make_plan(PLACEMENT, 2, counts, n=8)
    other = to.Placement.even(world=2, experts=4)
    with pytest.raises(to.InvalidArgument, match=r"\[2, 3\].*\[2, 4\]"):
        to.make_plan(other, 0, counts, n=8)
    with pytest.raises(to.DTypeError, match="counts must be a RouteCounts, got list"):
        to.make_plan(PLACEMENT, 0, COUNTS, n=8)


def test_check_plan_sees_counts_that_do_not_belong_to_the_plan():
    counts = to.RouteCounts(PLACEMENT, COUNTS)
    plan = to.make_plan(PLACEMENT, 1, counts, n=8, tile=(4, 8))
    changed = to.RouteCounts(PLACEMENT, [[2, 1, 3], [1, 4, 0]])
    assert to.check_plan(plan, counts) == []
    assert to.check_plan(plan, changed) != []


def test_arrays_are_read_only_views_that_keep_the_plan_alive():
    plan = plans_for(PLACEMENT, COUNTS, n=8, tile=(4, 8))[1]
    segments, runs = plan.segments, plan.runs
    with pytest.raises(ValueError, match="read-only"):
        segments["row_count"] = 0
    wanted = runs.tolist()
    del plan
    assert runs.tolist() == wanted


def test_tile_at_walks_the_groups():
    placement = to.Placement.even(world=1, experts=1)
    plan = plans_for(placement, [[24]], n=16, tile=(8, 8), group=2)[0]
    assert plan.order["group_size"].tolist() == [1, 2, 2]
    tiles = [plan.tile_at(task) for task in range(plan.tiles)]
    assert tiles == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (2, 0, 0), (1, 1, 0), (2, 1, 0)]
    with pytest.raises(to.InvalidArgument, match="task must be at most 5, got 6"):
        plan.tile_at(6)


def test_tile_arrays_give_the_papers_view():
    placement = to.Placement.even(world=2, experts=2)
    plan = plans_for(placement, [[3, 5], [2, 0]], n=8, tile=(4, 4), layout="owner_aligned")[0]
    arrays = to.tile_arrays(plan)
    assert arrays["tile"].tolist() == [0, 1, 2, 3]
    assert arrays["dest_rank"].tolist() == [1, 1, 0, 0]
    assert arrays["valid_rows"].tolist() == [2, 2, 3, 3]
    assert arrays["remote_offset"].tolist() == [0, 4, -1, -1]


def test_reprs_say_what_they_hold():
    plan = plans_for(PLACEMENT, COUNTS, n=8, tile=(4, 8))[1]
    for word in ("rank=1 of 2", "n=8", "valid_rows=7", "(4, 8)", "compact"):
        assert word in repr(plan)
    assert "copies=10" in repr(to.RouteCounts(PLACEMENT, COUNTS))
