"""Session.run: the return path alone, for engines that fill the planned rows by themselves."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from support import as_dtype, dispatched_rows, executors, random_ids, random_weights, same_bits

import tileoverlap as to

WORLD, EXPERTS, TOP_K, K, N, TILE = 3, 7, 2, 8, 24, (4, 8)
PLACEMENT = to.Placement.even(world=WORLD, experts=EXPERTS)


class Call:
    """One call's tensors on all ranks."""

    def __init__(self, seed: int, dtype: str = "float32", layout: str = "compact") -> None:
        rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.ids = [random_ids(rng, t, TOP_K, EXPERTS, skipped=0.1) for t in (9, 0, 13)]
        counts = to.count_routes(PLACEMENT, self.ids)
        self.plans = [
            to.make_plan(PLACEMENT, r, counts, n=N, tile=TILE, layout=layout) for r in range(WORLD)
        ]
        x = [as_dtype(rng.standard_normal((len(i), K), np.float32), dtype) for i in self.ids]
        self.x = [to.reference.as_float64(part).astype(np.float32) for part in x]
        self.rows = [as_dtype(r, dtype) for r in dispatched_rows(self.plans, self.ids, self.x)]
        self.weights = [random_weights(rng, part) for part in self.ids]
        self.down = as_dtype(rng.standard_normal((EXPERTS, N, K), np.float32), dtype)
        self.outs = [
            as_dtype(np.full((len(part), N), np.nan, np.float32), dtype) for part in self.ids
        ]

    def start(
        self, sessions: list[to.Session], mode: str = "overlapped", *, apart: bool = False
    ) -> None:
        for rank, session in enumerate(sessions):
            mine = PLACEMENT.experts_of(rank)
            experts = self.down[mine.start : mine.stop]
            session.run(
                self.plans[rank],
                self.rows[rank],
                [experts[i] for i in range(len(experts))] if apart else experts,
                self.ids[rank],
                self.weights[rank],
                out=self.outs[rank],
                mode=mode,
            )

    def check(self) -> None:
        wanted = to.reference.return_path(self.x, self.ids, self.weights, down=self.down)
        comparison = to.reference.compare(self.outs, wanted, self.dtype)
        assert comparison.ok, comparison


def sessions_for(dtype: str = "float32", layout: str = "compact", **options) -> list[to.Session]:
    faults = options.pop("faults", None)
    return [
        executor.prepare(
            placement=PLACEMENT,
            dtype=dtype,
            k=K,
            n=N,
            top_k=TOP_K,
            max_tokens=13,
            tile=TILE,
            layout=layout,
            timeout_s=60,
            **options,
        )
        for executor in executors(WORLD, faults=faults)
    ]


def synchronize(sessions: list[to.Session]) -> None:
    for session in sessions:
        session.synchronize()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_rows_come_back_weighted_and_summed(dtype: str, layout: str):
    sessions = sessions_for(dtype, layout, faults=to.CpuFaults(poison=True))
    serial, overlapped = Call(1, dtype, layout), Call(1, dtype, layout)
    overlapped.start(sessions)
    serial.start(sessions, "serial")
    synchronize(sessions)
    overlapped.check()
    serial.check()
    assert same_bits(overlapped.outs, serial.outs)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_may_be_one_tensor_an_expert(dtype: str):
    sessions = sessions_for(dtype)
    together, apart = Call(3, dtype), Call(3, dtype)
    together.start(sessions)
    apart.start(sessions, apart=True)
    synchronize(sessions)
    apart.check()
    assert same_bits(apart.outs, together.outs)


def test_a_list_of_weights_that_does_not_fit_is_refused_by_name():
    call = Call(3)
    session = sessions_for()[0]
    with pytest.raises(to.InvalidArgument, match=r"weights must be one tensor or 3 tensors.*got 2"):
        session.run(
            call.plans[0],
            call.rows[0],
            [call.down[0], call.down[1]],
            call.ids[0],
            call.weights[0],
            out=call.outs[0],
        )


def test_runs_follow_each_other_without_waiting():
    sessions = sessions_for(faults=to.CpuFaults(poison=True, max_delay_us=200))
    calls = [Call(seed) for seed in range(8)]
    for call in calls:
        call.start(sessions)
    synchronize(sessions)
    for call in calls:
        call.check()
    assert [session.epoch for session in sessions] == [8] * WORLD


def test_ranks_that_run_different_plans_are_told_so():
    sessions = sessions_for()
    call, other = Call(1), Call(2)
    call.plans[1], call.ids[1], call.rows[1] = other.plans[1], other.ids[1], other.rows[1]
    call.start(sessions)
    with pytest.raises(to.WaitTimeout) as error:
        sessions[0].synchronize()
    assert error.value.what == "same_plan"
    assert call.plans[0].fingerprint != call.plans[1].fingerprint
    assert len({plan.fingerprint for plan in Call(1).plans}) == 1


def test_segment_sizes_may_differ_from_plan_to_plan():
    sessions = sessions_for()
    for bands in (1, 2, 5):
        call = Call(bands)
        counts = to.count_routes(PLACEMENT, call.ids)
        call.plans = [
            to.make_plan(
                PLACEMENT, r, counts, n=N, tile=TILE, bands_per_segment=bands + r, group=bands
            )
            for r in range(WORLD)
        ]
        call.start(sessions)
        synchronize(sessions)
        call.check()


def test_tensors_are_kept_until_the_run_is_done():
    sessions = sessions_for(faults=to.CpuFaults(max_delay_us=5000))
    call = Call(3)
    call.start(sessions)
    outs = call.outs
    wanted = to.reference.return_path(call.x, call.ids, call.weights, down=call.down)
    del call
    gc.collect()
    # Freed memory of these sizes would be handed out again here, and overwritten.
    scribbled = [np.full((40, K), np.nan, np.float32) for _ in range(50)]
    synchronize(sessions)
    assert to.reference.compare(outs, wanted, "float32").ok
    assert len(scribbled) == 50


def test_a_closed_session_says_so():
    sessions = sessions_for()
    for session in sessions:
        session.close()
        session.close()
        assert "closed" in repr(session)
        with pytest.raises(to.InvalidArgument, match="closed"):
            session.synchronize()


def test_sessions_can_be_dropped_while_runs_are_under_way():
    sessions = sessions_for(faults=to.CpuFaults(max_delay_us=20_000))
    Call(4).start(sessions)
    del sessions
    gc.collect()


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"rows": np.zeros((1, K), np.float32)}, to.InvalidArgument, ["rows", "1"]),
        ({"rows": np.zeros((99, K + 4), np.float32)}, to.InvalidArgument, ["rows", "[99, 12]"]),
        ({"weights": np.zeros((3, N, K), np.float64)}, to.DTypeError, ["weights", "float64"]),
        (
            {"weights": np.zeros((2, N, K), np.float32)},
            to.InvalidArgument,
            ["weights", "[3, 24, 8]"],
        ),
        ({"weights": np.zeros((3, N), np.float32)}, to.InvalidArgument, ["weights", "[3, 24]"]),
        ({"topk_weights": np.zeros((9, 2))}, to.DTypeError, ["topk_weights", "float64"]),
        (
            {"topk_weights": np.zeros((8, 2), np.float32)},
            to.InvalidArgument,
            ["topk_weights", "[8, 2]"],
        ),
        ({"topk_ids": np.zeros((9, 3), np.int32)}, to.InvalidArgument, ["topk_ids", "[9, 3]"]),
        ({"topk_ids": np.zeros((9, 2), np.int32)}, to.InvalidArgument, ["do not belong"]),
        ({"out": np.zeros((9, N + 8), np.float32)}, to.InvalidArgument, ["out", "[9, 32]"]),
        ({"out": None}, TypeError, ["out", "NoneType"]),
        ({"plan": "plan"}, TypeError, ["plan", "str"]),
        ({"mode": "fast"}, to.InvalidArgument, ["mode", "fast", "serial"]),
    ],
)
def test_bad_arguments_are_refused_by_name_and_the_session_lives_on(change, kind, words):
    sessions = sessions_for()
    call = Call(5)
    arguments = {
        "plan": call.plans[0],
        "rows": call.rows[0],
        "weights": call.down[:3],
        "topk_ids": call.ids[0],
        "topk_weights": call.weights[0],
        "out": call.outs[0],
        **change,
    }
    with pytest.raises(kind) as error:
        sessions[0].run(**arguments)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)
    assert np.isnan(call.outs[0]).all()
    call.start(sessions)
    synchronize(sessions)
    call.check()


def test_an_output_that_shares_memory_with_an_input_is_refused():
    sessions = sessions_for()
    call = Call(6)
    memory = np.zeros((99, 24), np.float32)
    call.rows[0] = memory[:, :K]
    with pytest.raises(to.InvalidArgument, match="out shares memory with rows"):
        sessions[0].run(
            call.plans[0],
            call.rows[0],
            call.down[:3],
            call.ids[0],
            call.weights[0],
            out=memory[:9],
        )


def test_the_timeline_has_every_worker_and_every_tile():
    sessions = sessions_for(record_timeline=True)
    call = Call(7)
    call.start(sessions)
    synchronize(sessions)
    for plan, session in zip(call.plans, sessions, strict=True):
        timeline = session.timeline()
        events = timeline.events
        assert set(events["rank"]) <= {session.rank}
        assert (events["end_ns"] >= events["begin_ns"]).all()
        tiles = events[events["span"] == to.timeline.SPANS.index("produce: tile")]
        assert len(tiles) == plan.tiles
        copies = events[events["span"] == to.timeline.SPANS.index("consume: copy")]
        assert sorted(copies["item"]) == list(range(len(plan.segments)))
        assert len(timeline.worker_names) == 3
    times = to.overlap_times([session.timeline() for session in sessions])
    assert 0 < times.first_ns <= times.gemm_end_ns
    assert times.landed_ns > times.first_ns
