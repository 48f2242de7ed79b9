"""Sizes beyond 32-bit offsets and 16-bit grids, with small numbers in large buffers."""

from __future__ import annotations

import numpy as np
import pytest

import tileoverlap as to


@pytest.mark.case("D3.3")
def test_an_expert_2_to_the_31_elements_into_the_weights_is_read_from_its_place():
    experts, width, tokens = 129, 4096, 3
    down = np.zeros((experts, width, width), np.float16)  # pages nobody touches are never made
    down[-1] = np.eye(width, dtype=np.float16)
    assert down.strides[0] // down.itemsize * (experts - 1) == 2**31
    layer = to.CpuExecutor(to.World(1).transport(0)).prepare_layer(
        placement=to.Placement.even(world=1, experts=experts),
        dtype="float16",
        expert="single",
        hidden=width,
        inner=width,
        top_k=1,
        max_tokens=tokens,
    )
    x = np.random.default_rng(3).standard_normal((tokens, width)).astype(np.float16)
    ids = np.full((tokens, 1), experts - 1, np.int32)
    out = np.full((tokens, width), np.nan, np.float16)
    layer.forward(x, ids, np.ones((tokens, 1), np.float32), down=down, out=out)
    layer.synchronize()
    np.testing.assert_array_equal(out, x)


@pytest.mark.case("D3.5")
def test_more_than_65535_routed_rows_go_through_every_stage():
    tokens, top_k, width = 8192, 8, 64
    world = to.World(2)
    layers = [
        to.CpuExecutor(world.transport(rank)).prepare_layer(
            placement=to.Placement.even(world=2, experts=2),
            dtype="float32",
            expert="single",
            hidden=width,
            inner=width,
            top_k=top_k,
            max_tokens=tokens,
        )
        for rank in range(2)
    ]
    rng = np.random.default_rng(5)
    x = [rng.integers(-8, 8, (tokens, width)).astype(np.float32) for _ in range(2)]
    ids = np.tile(np.array([0, 1], np.int32), (tokens, top_k // 2))
    weights = np.full((tokens, top_k), 1 / top_k, np.float32)
    out = [np.full((tokens, width), np.nan, np.float32) for _ in range(2)]
    for rank, layer in enumerate(layers):
        down = (rank + 1) * np.eye(width, dtype=np.float32)[None]  # expert e gives (e + 1) x
        layer.forward(x[rank], ids, weights, down=down, out=out[rank])
    for layer in layers:
        layer.synchronize()
    for rank in range(2):
        np.testing.assert_array_equal(out[rank], 1.5 * x[rank])
