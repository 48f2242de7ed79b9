"""Kind 1: zero tokens for an expert, a rank, the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, random_ids

import tileoverlap as to


@pytest.mark.case("D1.1")
def test_a_rank_may_be_empty_as_owner_and_busy_as_host():
    """D1.1: T = [0, 16, 16, 16]."""
    rng = np.random.default_rng(1)
    ids = [random_ids(rng, tokens, 2, 8) for tokens in (0, 16, 16, 16)]
    with Layer(to.Placement.even(world=4, experts=8), top_k=2, max_tokens=16, hidden=256) as layer:
        outs = layer.check_random(rng, ids)
    assert outs[0].shape == (0, 256)


@pytest.mark.case("D1.2")
def test_a_rank_may_host_no_row():
    """D1.2: every id is in 4..7, rank 0 hosts nothing."""
    rng = np.random.default_rng(2)
    ids = [rng.integers(4, 8, (16, 2)) for _ in range(2)]
    with Layer(to.Placement.even(world=2, experts=8), top_k=2, max_tokens=16) as layer:
        layer.check_random(rng, ids)


@pytest.mark.case("D1.3")
@pytest.mark.parametrize("world", [1, 4])
def test_no_tokens_anywhere(world: int):
    """D1.3"""
    rng = np.random.default_rng(3)
    empty = [np.zeros((0, 2), np.int32)] * world
    some = [random_ids(rng, 3, 2, 4) for _ in range(world)]
    with Layer(to.Placement.even(world=world, experts=4), top_k=2, max_tokens=3) as layer:
        for ids in (empty, empty, some, empty):
            outs = layer.check_random(rng, ids)
            assert [len(out) for out in outs] == [len(part) for part in ids]
        assert {rank.epoch for rank in layer.layers} == {4}


@pytest.mark.case("D1.6")
def test_ranks_without_rows_take_every_step():
    """D1.6: three calls to rank 2's experts, three to rank 0's."""
    rng = np.random.default_rng(6)
    with Layer(to.Placement.even(world=4, experts=8), top_k=2, max_tokens=8) as layer:
        for first in (4, 4, 4, 0, 0, 0):
            layer.check_random(rng, [rng.integers(first, first + 2, (8, 2)) for _ in range(4)])
        assert [rank.epoch for rank in layer.layers] == [6] * 4


@pytest.mark.case("D1.8")
@pytest.mark.parametrize("strides", [(512, 1), (1, 1), (0, 0)])
def test_strides_of_tensors_without_elements_do_not_matter(strides: tuple[int, int]):
    """D1.8"""
    x = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.float32), (0, 512), [4 * stride for stride in strides]
    )
    ids = [np.zeros((0, 2), np.int32)]
    with Layer(to.Placement.even(world=1, experts=2), top_k=2, max_tokens=4, inner=512) as layer:
        outs = layer.run([x], ids, [np.zeros((0, 2), np.float32)])
    assert outs[0].shape == (0, 16)


def test_a_world_whose_ranks_host_no_expert_but_one():
    rng = np.random.default_rng(7)
    ids = [random_ids(rng, 5, 3, 2) for _ in range(4)]
    with Layer(to.Placement([0, 0, 2, 2, 2]), top_k=3, max_tokens=5) as layer:
        layer.check_random(rng, ids)


def test_no_experts_and_no_copies():
    ids = [np.full((3, 2), -1)] * 2
    with Layer(to.Placement([0, 0, 0]), top_k=2, max_tokens=3) as layer:
        outs = layer.check_random(np.random.default_rng(8), ids)
    assert all((out == 0).all() for out in outs)
