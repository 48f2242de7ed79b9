"""Waits that reach their limit say who waited for whom, and end everybody's call."""

from __future__ import annotations

import gc
import signal
import time

import numpy as np
import pytest
from support import Layer, executors, random_ids

import tileoverlap as to

LIMIT_S = 0.3


def test_a_band_that_is_never_published_is_named():
    """Rank, expert, band and epoch, within the limit that was set."""
    rng = np.random.default_rng(1)
    faults = [to.CpuFaults(), to.CpuFaults(withhold_band=1)]
    with Layer(
        to.Placement.even(world=2, experts=2),
        top_k=1,
        max_tokens=24,
        faults=faults,
        timeout_s=LIMIT_S,
        tile=(8, 8),
    ) as layer:
        ids = [np.full((24, 1), 1)] * 2  # rank 1 hosts 24 rows of rank 0 in bands 0..2
        begin = time.monotonic()
        layer.start(layer.random_x(rng, ids), ids, [np.ones((24, 1), np.float32)] * 2)
        with pytest.raises(to.WaitTimeout) as error:
            layer.layers[1].synchronize()
        elapsed = time.monotonic() - begin
        assert LIMIT_S <= elapsed < LIMIT_S + 5
        failure = error.value
        assert (failure.stage, failure.what) == ("consume", "band")
        assert (failure.rank, failure.peer, failure.raised_on) == (1, 1, 1)
        assert (failure.expert, failure.band, failure.epoch) == (1, 1, 1)
        assert failure.segment >= 0
        assert failure.timeout_s == pytest.approx(LIMIT_S)
        for word in ("rank 1", "expert 1", "band 1", "epoch 1"):
            assert word in str(failure)
        # The peer is told, and says so.
        with pytest.raises(to.WaitTimeout) as told:
            layer.layers[0].synchronize()
        assert (told.value.rank, told.value.raised_on) == (1, 0)
        # After that, nothing runs any more, and asking again gives the same answer.
        with pytest.raises(to.WaitTimeout):
            layer.layers[0].check()
        with pytest.raises(to.WaitTimeout):
            layer.layers[0].forward(
                np.zeros((24, 8), np.float32),
                ids[0],
                np.ones((24, 1), np.float32),
                down=layer.down[:1],
                out=np.zeros((24, 16), np.float32),
            )


@pytest.mark.case("D15.1")
def test_a_rank_that_never_calls_is_named():
    """D15.1: rank 2 of 4 is missing."""
    rng = np.random.default_rng(2)
    ids = [random_ids(rng, 4, 2, 8) for _ in range(4)]
    with Layer(
        to.Placement.even(world=4, experts=8), top_k=2, max_tokens=4, timeout_s=LIMIT_S
    ) as layer:
        x = layer.random_x(rng, ids)
        for rank in (0, 1, 3):
            layer.layers[rank].forward(
                x[rank],
                ids[rank],
                np.ones((4, 2), np.float32),
                down=layer.down[layer.mine(rank)],
                out=np.zeros((4, 16), np.float32),
            )
        for rank in (0, 1, 3):
            with pytest.raises(to.WaitTimeout) as error:
                layer.layers[rank].synchronize()
            assert error.value.peer == 2
            assert error.value.epoch == 1
            assert "rank 2" in str(error.value)


def test_a_rank_that_never_prepares_is_named():
    placement = to.Placement.even(world=2, experts=2)
    session = executors(2)[0].prepare(
        placement=placement, dtype="float32", k=4, n=4, top_k=1, max_tokens=1, timeout_s=LIMIT_S
    )
    ids = np.array([[0]])
    counts = to.count_routes(placement, [ids, ids])
    plan = to.make_plan(placement, 0, counts, n=4)
    session.run(
        plan,
        np.zeros((plan.rows, 4), np.float32),
        np.zeros((1, 4, 4), np.float32),
        ids,
        np.ones((1, 1), np.float32),
        out=np.zeros((1, 4), np.float32),
    )
    with pytest.raises(to.WaitTimeout) as error:
        session.synchronize()
    assert (error.value.what, error.value.rank, error.value.peer) == ("memory", 0, 1)


@pytest.mark.case("D15.2")
def test_teardown_after_a_failure_does_not_wait():
    """D15.2: no collective call after an error."""
    rng = np.random.default_rng(3)
    ids = [random_ids(rng, 4, 1, 2)] * 2
    with Layer(to.Placement.even(world=2, experts=2), top_k=1, max_tokens=4, timeout_s=30) as layer:
        x = layer.random_x(rng, ids)
        layer.layers[0].forward(
            x[0],
            ids[0],
            np.ones((4, 1), np.float32),
            down=layer.down[:1],
            out=np.zeros((4, 16), np.float32),
        )
        begin = time.monotonic()
        layer.layers[0].close()
        assert time.monotonic() - begin < 5
    gc.collect()


def test_a_peer_that_closes_is_named():
    rng = np.random.default_rng(4)
    ids = [random_ids(rng, 4, 1, 2)] * 2
    with Layer(to.Placement.even(world=2, experts=2), top_k=1, max_tokens=4, timeout_s=30) as layer:
        layer.check_random(rng, ids)
        layer.layers[1].close()
        layer.layers[0].forward(
            layer.random_x(rng, ids)[0],
            ids[0],
            np.ones((4, 1), np.float32),
            down=layer.down[:1],
            out=np.zeros((4, 16), np.float32),
        )
        begin = time.monotonic()
        with pytest.raises(to.WaitTimeout) as error:
            layer.layers[0].synchronize()
        assert time.monotonic() - begin < 5
        assert (error.value.what, error.value.peer) == ("peer_closed", 1)


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TILEOVERLAP_TIMEOUT_S", "0.1")
    placement = to.Placement.even(world=2, experts=2)
    with pytest.raises(to.WaitTimeout) as error:
        to.gather_counts(to.World(2).transport(1), placement, np.zeros((1, 1), np.int32))
    assert error.value.timeout_s == pytest.approx(0.1)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "1e12", "nan"])
def test_a_bad_limit_in_the_environment_is_refused(value: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TILEOVERLAP_TIMEOUT_S", value)
    with pytest.raises(to.InvalidArgument, match=f"TILEOVERLAP_TIMEOUT_S.*'{value}'"):
        executors(1)[0].prepare(
            placement=to.Placement.even(world=1, experts=1),
            dtype="float32",
            k=4,
            n=4,
            top_k=1,
            max_tokens=1,
        )


def test_ctrl_c_ends_a_wait_at_once():
    """A rank that never comes does not hold the terminal until the limit."""

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    world = to.World(2)
    layer = to.CpuExecutor(world.transport(0)).prepare_layer(
        placement=to.Placement.even(world=2, experts=2),
        dtype="float32",
        expert="single",
        hidden=8,
        inner=8,
        top_k=1,
        max_tokens=1,
        timeout_s=60,
    )
    layer.forward(
        np.zeros((1, 8), np.float32),
        np.zeros((1, 1), np.int32),
        np.ones((1, 1), np.float32),
        down=np.zeros((1, 8, 8), np.float32),
        out=np.zeros((1, 8), np.float32),
    )
    begin = time.monotonic()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            layer.synchronize()
        layer.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 5
