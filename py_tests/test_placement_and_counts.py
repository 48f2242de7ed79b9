"""Stage routing: who hosts which expert, who sends how many copies where."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from dlpack_producer import Producer
from support import LIMIT_S, random_ids

import tileoverlap as to


def test_even_placement_gives_the_first_ranks_one_more():
    placement = to.Placement.even(world=4, experts=10)
    assert placement.expert_begin == (0, 3, 6, 8, 10)
    assert [placement.rank_of(e) for e in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert list(placement.experts_of(2)) == [6, 7]


@pytest.mark.case("D4.9")
@pytest.mark.parametrize(("experts", "world"), [(256, 3), (10, 4)])
def test_experts_that_do_not_divide_are_accepted_and_none_is_orphaned(experts: int, world: int):
    """D4.9, decided otherwise: uneven placement instead of a refusal."""
    placement = to.Placement.even(world=world, experts=experts)
    hosted = [e for rank in range(world) for e in placement.experts_of(rank)]
    assert hosted == list(range(experts))
    assert max(map(placement.experts_on, range(world))) - min(
        map(placement.experts_on, range(world))
    ) == (experts % world > 0)


def test_ranks_may_host_nothing():
    placement = to.Placement([0, 0, 2, 2])
    assert [placement.experts_on(rank) for rank in range(3)] == [0, 2, 0]
    assert placement.rank_of(0) == 1


def test_placements_compare_and_hash_by_value():
    assert to.Placement([0, 2, 4]) == to.Placement.even(world=2, experts=4)
    assert len({to.Placement([0, 2, 4]), to.Placement.even(world=2, experts=4)}) == 1
    assert "expert_begin=[0, 2, 4]" in repr(to.Placement([0, 2, 4]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to.Placement.even(world=0, experts=4), ["world", "0"]),
        (lambda: to.Placement.even(world=2, experts=-1), ["experts", "-1"]),
        (lambda: to.Placement.even(world=2, experts=2**40), ["experts", str(2**40)]),
        (lambda: to.Placement.even(world="2", experts=4), ["world", "'2'"]),
        (lambda: to.Placement.even(world=True, experts=4), ["world", "True"]),
        (lambda: to.Placement([1, 2]), ["start at 0", "1"]),
        (lambda: to.Placement([0, 3, 2]), ["3", "2", "index 2"]),
        (lambda: to.Placement([0]), ["at least 2", "1"]),
        (lambda: to.Placement.even(world=2, experts=4).rank_of(4), ["0..3", "4"]),
        (lambda: to.Placement.even(world=2, experts=4).experts_of(2), ["rank", "2"]),
    ],
)
def test_bad_placements_are_refused_by_name_and_number(make, words):
    with pytest.raises(to.InvalidArgument) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


PLACEMENT = to.Placement.even(world=2, experts=8)


@pytest.mark.case("D4.1")
def test_minus_one_is_no_copy():
    """D4.1: slot (0, 1) is skipped."""
    placement = to.Placement.even(world=1, experts=4)
    counts = to.count_routes(placement, [np.array([[0, -1], [3, 2]])])
    assert counts.array.tolist() == [[1, 0, 1, 1]]
    assert counts.copies_of(0) == 3


@pytest.mark.case("D4.2")
@pytest.mark.parametrize("bad", [-2, 64, 2147483647])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_other_outsiders_are_errors_with_rank_token_slot_and_value(bad: int, dtype):
    """D4.2: a negative id must not pass "id < experts", nor be hidden as a skip."""
    placement = to.Placement.even(world=2, experts=64)
    ids = np.zeros((5, 3), dtype)
    broken = ids.copy()
    broken[3, 2] = bad
    with pytest.raises(to.InvalidArgument, match=f"got {bad} at rank 1, token 3, slot 2"):
        to.count_routes(placement, [ids, broken])


@pytest.mark.case("D4.3")
def test_int64_and_int32_ids_count_alike():
    """D4.3: never reinterpreted."""
    ids = np.array([[5, 6], [7, 0]])
    wide = to.count_routes(PLACEMENT, [ids, ids])
    narrow = to.count_routes(PLACEMENT, [ids.astype(np.int32)] * 2)
    assert wide.array.tolist() == narrow.array.tolist() == [[1, 0, 0, 0, 0, 1, 1, 1]] * 2


@pytest.mark.case("D4.4")
def test_ids_are_checked_at_their_full_width():
    """D4.4: the low word is right, the high word is not."""
    value = np.array([[0xFFFF0BDC00000003]], np.uint64).view(np.int64)
    placement = to.Placement.even(world=1, experts=8)
    with pytest.raises(to.InvalidArgument, match=str(int(value[0, 0]))):
        to.count_routes(placement, [value])


@pytest.mark.case("D4.5")
def test_sliced_ids_equal_their_copy():
    """D4.5: strides (8, 1)."""
    wide = np.arange(32, dtype=np.int32).reshape(4, 8) % 8
    placement = to.Placement.even(world=1, experts=8)
    sliced = to.count_routes(placement, [wide[:, :2]])
    assert sliced.array.tolist() == to.count_routes(placement, [wide[:, :2].copy()]).array.tolist()


@pytest.mark.case("D4.6")
def test_an_expert_named_twice_is_two_copies():
    """D4.6"""
    placement = to.Placement.even(world=1, experts=8)
    assert to.count_routes(placement, [np.array([[3, 3]])]).array[0, 3] == 2


@pytest.mark.case("D1.7")
def test_no_tokens_at_all():
    """D1.7: nothing is read at index -1."""
    placement = to.Placement.even(world=4, experts=8)
    counts = to.count_routes(placement, [np.zeros((0, 2), np.int32)] * 4)
    assert counts.array.sum() == 0
    for rank in range(4):
        plan = to.make_plan(placement, rank, counts, n=64)
        assert (plan.rows, plan.bands, len(plan.segments), plan.staging_rows) == (0, 0, 0, 0)
        assert plan.staging_row.tolist() == [0] * 9
        assert plan.experts["row_begin"].tolist() == [0, 0]


@pytest.mark.parametrize(
    "ids",
    [np.zeros((2, 2), d) for d in (np.int8, np.uint8, np.int16, np.uint32, np.uint64, np.float32)]
    + [np.zeros((2, 2), bool), np.zeros((2, 2), np.complex64)],
    ids=lambda ids: str(ids.dtype),
)
def test_other_id_types_are_refused_by_name(ids: np.ndarray):
    placement = to.Placement.even(world=1, experts=8)
    with pytest.raises(to.DTypeError, match="topk_ids must be int32 or int64, got"):
        to.count_routes(placement, [ids])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([[0, 1]], ["list"]),
        (7, ["int"]),
        (None, ["NoneType"]),
        (np.array([["a", "b"]]), ["<U1"]),
        (np.array([[object()]]), ["object"]),
        (np.zeros((2, 2), ">i4"), [">i4"]),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(ids, words):
    with pytest.raises(TypeError) as error:
        to.count_routes(to.Placement.even(world=1, experts=8), [ids])
    assert "topk_ids" in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_one_tensor_in_place_of_a_list_is_refused():
    with pytest.raises(to.DTypeError, match="list of one tensor a rank"):
        to.count_routes(PLACEMENT, np.zeros((2, 2), np.int32))


def test_wrong_number_of_ranks_is_refused():
    with pytest.raises(to.InvalidArgument, match=r"2.*3"):
        to.count_routes(PLACEMENT, [np.zeros((2, 2), np.int32)] * 3)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[1, 2]], ["[2, 8]", "[1, 2]"]),
        (np.full((2, 8), -1), ["-1", "owner 0", "expert 0"]),
        (np.full((2, 8), 2**31), [str(2**31)]),
        (np.ones((2, 8)), ["float64"]),
        ([["a"] * 8] * 2, ["<U1"]),
    ],
)
def test_bad_count_matrices_are_refused(counts, words):
    with pytest.raises(to.InvalidArgument) as error:
        to.RouteCounts(PLACEMENT, counts)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_counts_show_the_matrix_without_a_copy_and_read_only():
    counts = to.RouteCounts(PLACEMENT, np.arange(16).reshape(2, 8))
    assert counts.array.tolist() == np.arange(16).reshape(2, 8).tolist()
    with pytest.raises(ValueError, match="read-only"):
        counts.array[0, 0] = 1
    view = counts.array
    del counts
    assert view[1, 7] == 15  # the view keeps the matrix alive


def test_gather_counts_is_the_same_matrix_on_all_ranks():
    placement = to.Placement.even(world=3, experts=7)
    ids = [random_ids(np.random.default_rng(r), 4 * r, 2, 7, skipped=0.2) for r in range(3)]
    world = to.World(3)
    gathered: dict[int, list] = {r: [] for r in range(3)}

    def one_rank(rank: int) -> None:
        for _ in range(5):
            counts = to.gather_counts(
                world.transport(rank), placement, ids[rank], timeout_s=LIMIT_S
            )
            gathered[rank].append(counts.array.tolist())

    threads = [threading.Thread(target=one_rank, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    wanted = to.count_routes(placement, ids).array.tolist()
    assert gathered == {rank: [wanted] * 5 for rank in range(3)}


def test_gather_counts_names_the_rank_that_is_missing():
    world = to.World(3)
    placement = to.Placement.even(world=3, experts=3)
    with pytest.raises(to.WaitTimeout) as error:
        to.gather_counts(world.transport(0), placement, np.zeros((1, 1), np.int32), timeout_s=0.05)
    assert (error.value.what, error.value.rank, error.value.peer) == ("counts", 0, 1)


@pytest.mark.parametrize("bad", [np.array([[9]]), np.zeros((1, 1)), [[0]]], ids=str)
def test_ids_that_one_rank_refuses_end_the_call_on_all(bad):
    world = to.World(2)
    placement = to.Placement.even(world=2, experts=2)
    refused: list[Exception] = []

    def other_rank() -> None:
        try:
            ids = np.zeros((1, 1), np.int32)
            to.gather_counts(world.transport(1), placement, ids, timeout_s=LIMIT_S)
        except Exception as error:
            refused.append(error)

    thread = threading.Thread(target=other_rank)
    thread.start()
    with pytest.raises(to.InvalidArgument, match="topk_ids must"):
        to.gather_counts(world.transport(0), placement, bad, timeout_s=LIMIT_S)
    thread.join(LIMIT_S)
    assert isinstance(refused[0], to.CallRefused)
    assert "rank 0 refused" in str(refused[0])


def test_gather_counts_refuses_the_placement_of_another_world():
    with pytest.raises(to.InvalidArgument, match=r"4 ranks.*3"):
        to.gather_counts(
            to.World(3).transport(0),
            to.Placement.even(world=4, experts=4),
            np.zeros((1, 1), np.int32),
        )


def test_ids_of_an_old_producer_count_too():
    ids = Producer(np.array([[1, 2]], np.int32), old=True)
    counts = to.count_routes(to.Placement.even(world=1, experts=4), [ids])
    assert counts.array.tolist() == [[0, 1, 1, 0]]
    assert ids.deleted == 1
