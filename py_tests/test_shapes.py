"""Kind 2: sizes that do not divide by anything."""

from __future__ import annotations

import numpy as np
import pytest
from support import Layer, bits, executors, nan_filled, random_ids

import tileoverlap as to


def ids_for_rows(rows: list[int]) -> np.ndarray:
    """One rank's ids, top-1, that give each expert so many rows."""
    return np.repeat(np.arange(len(rows)), rows)[:, None]


@pytest.mark.case("D2.1")
def test_a_plan_of_another_tile_is_refused_with_both_values():
    """D2.1: plan of tile_m 64, session of 128."""
    placement = to.Placement.even(world=1, experts=3)
    ids = ids_for_rows([128, 130, 65])
    plan = to.make_plan(placement, 0, to.count_routes(placement, [ids]), n=16, tile=(64, 16))
    with executors(1)[0].prepare(
        placement=placement, dtype="float32", k=8, n=16, top_k=1, max_tokens=323, tile=(128, 16)
    ) as session:
        out = np.full((323, 16), 7.0, np.float32)
        with pytest.raises(to.InvalidArgument) as error:
            session.run(
                plan,
                np.zeros((plan.rows, 8), np.float32),
                np.zeros((3, 16, 8), np.float32),
                ids,
                np.ones((323, 1), np.float32),
                out=out,
            )
        assert "tile_m = 64" in str(error.value)
        assert "tile_m = 128" in str(error.value)
        assert (out == 7.0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 32}, ["n = 32", "n = 16"]),
        ({"tile": (128, 8)}, ["tile_n = 8", "tile_n = 16"]),
        ({"layout": "owner_aligned"}, ["owner_aligned", "compact"]),
    ],
)
def test_a_plan_that_does_not_fit_the_session_is_refused(change, words):
    placement = to.Placement.even(world=1, experts=3)
    ids = ids_for_rows([1, 2, 3])
    options = {"n": 16, "tile": (128, 16), **change}
    plan = to.make_plan(placement, 0, to.count_routes(placement, [ids]), **options)
    with (
        executors(1)[0].prepare(
            placement=placement, dtype="float32", k=8, n=16, top_k=1, max_tokens=6, tile=(128, 16)
        ) as session,
        pytest.raises(to.InvalidArgument) as error,
    ):
        session.run(
            plan,
            np.zeros((plan.rows, 8), np.float32),
            np.zeros((3, 16, 8), np.float32),
            ids,
            np.ones((6, 1), np.float32),
            out=np.zeros((6, 16), np.float32),
        )
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.case("D2.2")
def test_odd_numbers_of_column_tiles_and_bands():
    """D2.2: 11 column tiles; 1 band and 3 bands."""
    rng = np.random.default_rng(22)
    for rows in ([128, 128], [100, 300]):
        with Layer(
            to.Placement.even(world=1, experts=2),
            top_k=1,
            max_tokens=400,
            hidden=1408,
            inner=32,
            tile=(128, 128),
            producer_threads=2,
        ) as layer:
            layer.check_random(rng, [ids_for_rows(rows)])


@pytest.mark.case("D2.3")
def test_all_rows_of_a_tall_tile_are_computed():
    """D2.3: all ones: every output equals the inner width, rows 64..127 too."""
    inner = 64
    with Layer(
        to.Placement.even(world=1, experts=1),
        top_k=1,
        max_tokens=128,
        inner=inner,
        tile=(128, 128),
    ) as layer:
        layer.down[:] = 1
        x = np.ones((128, inner), np.float32)
        (out,) = layer.run([x], [np.zeros((128, 1), np.int32)], [np.ones((128, 1), np.float32)])
    assert (out[64:] == inner).all()
    assert (out == inner).all()


@pytest.mark.case("D2.5")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_number_of_rows(dtype: str):
    """D2.5: 1471 rows."""
    rng = np.random.default_rng(25)
    with Layer(
        to.Placement.even(world=1, experts=3),
        top_k=1,
        max_tokens=1471,
        hidden=64,
        inner=32,
        dtype=dtype,
        tile=(128, 128),
    ) as layer:
        layer.check_random(rng, [rng.integers(0, 3, (1471, 1))])


@pytest.mark.case("D2.6")
def test_hidden_72_runs_and_70_is_refused_by_name():
    """D2.6: bfloat16 rows of 16 bytes."""
    rng = np.random.default_rng(26)
    placement = to.Placement.even(world=2, experts=4)
    with Layer(
        placement, top_k=2, max_tokens=9, hidden=72, inner=64, dtype="bfloat16", tile=(8, 64)
    ) as layer:
        layer.check_random(rng, [random_ids(rng, 9, 2, 4) for _ in range(2)])
    with pytest.raises(to.InvalidArgument) as error:
        Layer(placement, top_k=2, max_tokens=9, hidden=70, inner=64, dtype="bfloat16")
    assert "hidden" in str(error.value)
    assert "70" in str(error.value)
    assert "8" in str(error.value)


@pytest.mark.case("D2.7")
@pytest.mark.parametrize("rows", [1, 2, 3, 63, 64, 65])
def test_odd_row_counts_with_two_workers(rows: int):
    """D2.7"""
    rng = np.random.default_rng(27)
    with Layer(
        to.Placement.even(world=1, experts=4),
        top_k=1,
        max_tokens=4 * rows,
        tile=(64, 8),
        producer_threads=2,
        consumer_threads=2,
    ) as layer:
        layer.check_random(rng, [ids_for_rows([rows] * 4)])


@pytest.mark.case("D2.9")
@pytest.mark.parametrize(("rows", "hidden", "inner"), [(32, 7168, 256), (1, 8192, 1024)])
def test_wide_and_short(rows: int, hidden: int, inner: int):
    """D2.9"""
    rng = np.random.default_rng(29)
    with Layer(
        to.Placement.even(world=1, experts=1),
        top_k=1,
        max_tokens=rows,
        hidden=hidden,
        inner=inner,
        tile=(128, 256),
        dtype="bfloat16",
    ) as layer:
        layer.check_random(rng, [ids_for_rows([rows])])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("expert", ["single", "gelu", "silu_gate"])
def test_every_kind_of_expert_in_every_type(expert: str, dtype: str):
    rng = np.random.default_rng(30)
    ids = [random_ids(rng, 11, 3, 7, skipped=0.2) for _ in range(3)]
    with Layer(
        to.Placement.even(world=3, experts=7),
        top_k=3,
        max_tokens=11,
        hidden=40,
        inner=24,
        expert=expert,
        dtype=dtype,
    ) as layer:
        layer.check_random(rng, ids)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float64"}, ["dtype", "float64", "bfloat16"]),
        ({"expert": "relu"}, ["expert", "relu", "silu_gate"]),
        ({"hidden": 0}, ["hidden", "0"]),
        ({"inner": -4}, ["inner", "-4"]),
        ({"top_k": 0}, ["top_k", "0"]),
        ({"max_tokens": -1}, ["max_tokens", "-1"]),
        ({"max_tokens": 1.5}, ["max_tokens", "1.5"]),
        ({"tile": (0, 1)}, ["tile_m", "0"]),
        ({"layout": 3}, ["layout", "3"]),
        ({"timeout_s": 0}, ["timeout_s", "0"]),
        ({"timeout_s": "soon"}, ["timeout_s", "'soon'"]),
        ({"warmup_timeout_s": float("nan")}, ["warmup_timeout_s", "nan"]),
        ({"placement": to.Placement.even(world=3, experts=4)}, ["3", "2"]),
        ({"placement": 4}, ["placement", "int"]),
    ],
)
def test_bad_layer_options_are_refused_by_name_and_number(change, words):
    options = {
        "placement": to.Placement.even(world=2, experts=4),
        "dtype": "float32",
        "hidden": 16,
        "inner": 8,
        "top_k": 2,
        "max_tokens": 4,
        **change,
    }
    executor = executors(2)[0]
    with pytest.raises(to.InvalidArgument) as error:
        executor.prepare_layer(**options)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("what", ["producer_threads", "consumer_threads"])
def test_executors_need_threads(what: str):
    with pytest.raises(to.InvalidArgument, match=f"{what} must be at least 1, got 0"):
        to.CpuExecutor(to.World(1).transport(0), **{what: 0})


def test_ranks_must_prepare_alike():
    placement = to.Placement.even(world=2, experts=4)
    common = {"placement": placement, "dtype": "float32", "k": 8, "n": 16, "top_k": 2}
    first, second = executors(2)
    with first.prepare(max_tokens=64, **common), pytest.raises(to.InvalidArgument) as error:
        second.prepare(max_tokens=32, **common)
    assert "max_tokens=32 (rank 1)" in str(error.value)
    assert "max_tokens=64 (rank 0)" in str(error.value)


def test_a_rectangular_output_may_be_a_slice_of_a_wider_one():
    rng = np.random.default_rng(31)
    ids = [random_ids(rng, 6, 2, 4)]
    weights = [np.ones((6, 2), np.float32)]
    with Layer(to.Placement.even(world=1, experts=4), top_k=2, max_tokens=6) as layer:
        x = layer.random_x(rng, ids)
        (wanted,) = layer.run(x, ids, weights)
        wide = nan_filled((6, 32), "float32")
        layer.layers[0].forward(x[0], ids[0], weights[0], down=layer.down, out=wide[:, :16])
        layer.layers[0].synchronize()
    assert np.array_equal(bits(wide[:, :16]), bits(wanted))
    assert np.isnan(wide[:, 16:]).all()


def test_sizes_may_be_integers_of_numpy():
    sizes = {name: np.int64(8) for name in ("hidden", "inner", "top_k", "max_tokens")}
    executor = to.CpuExecutor(to.World(1).transport(0))
    placement = to.Placement.even(world=1, experts=2)
    with executor.prepare_layer(placement=placement, dtype="float32", **sizes) as layer:
        assert "max_tokens=8" in repr(layer)
