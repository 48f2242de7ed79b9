"""MoeLayer on a GPU: against the CPU executor and the float64 reference, and in CUDA graphs."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from gpu_support import (
    DTYPES,
    TRANSFERS,
    GpuLayer,
    gpu_marks,
    is_zero,
    outs,
    settle,
    to_gpu,
    to_host,
)
from support import as_dtype, random_ids, random_weights, same_bits

import tileoverlap as to

pytestmark = gpu_marks()

WORLD, EXPERTS, TOP_K = 3, 7, 2
PLACEMENT = to.Placement.even(world=WORLD, experts=EXPERTS)
TOKENS = (150, 0, 333)
ONE_RANK = to.Placement.even(world=1, experts=4)


def made(placement: to.Placement = PLACEMENT, **options: Any) -> GpuLayer:
    return GpuLayer(
        placement, **{"top_k": TOP_K, "max_tokens": max(TOKENS), "hidden": 72, **options}
    )


def random_call(layer: GpuLayer, seed: int, tokens: Any = TOKENS) -> tuple[Any, Any, Any]:
    """x, ids and weights of all ranks; about one copy in ten is left out."""
    rng = np.random.default_rng(seed)
    host = layer.host
    ids = [random_ids(rng, t, host.top_k, host.placement.experts, skipped=0.1) for t in tokens]
    return host.random_x(rng, ids), ids, [random_weights(rng, part) for part in ids]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("expert", ["single", "gelu", "silu_gate"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_a_layer_equals_the_reference_and_both_modes_are_the_same_bits(
    dtype: str, expert: str, layout: str
):
    faults = to.CudaFaults(poison=True)
    with made(dtype=dtype, expert=expert, layout=layout, faults=faults) as layer:
        call = random_call(layer, 1)
        overlapped = layer.check(*call)
        assert same_bits(overlapped, layer.check(*call, mode="serial"))


def test_results_do_not_depend_on_the_order_of_what_is_sent():
    with made() as layer:
        wanted = layer.run(*random_call(layer, 2))
    for seed in (1, 2):
        faults = to.CudaFaults(shuffle_seed=seed, max_delay_us=50, poison=True)
        with made(faults=faults, bands_per_segment=1 + seed) as layer:
            for _ in range(3):
                assert same_bits(layer.run(*random_call(layer, 2)), wanted)


def test_calls_follow_each_other_without_waiting():
    with made(expert="gelu") as layer:
        inputs = [random_call(layer, seed, (seed, 40 * seed, 0)) for seed in range(6)]
        calls = [layer.put(*call) for call in inputs]
        for call in calls:
            layer.start(call)
        layer.synchronize()
        for call, arguments in zip(calls, inputs, strict=True):
            wanted = layer.host.reference(*arguments)
            assert to.reference.compare(outs(call), wanted, "bfloat16").ok
        assert [rank.epoch for rank in layer.layers] == [6] * WORLD


def test_a_timeline_has_tiles_and_copies():
    with made(record_timeline=True) as layer:
        layer.run(*random_call(layer, 3))
        timelines = [rank.timeline() for rank in layer.layers]
        spans = {to.timeline.SPANS[span] for span in timelines[0].events["span"]}
        assert {"produce: tile", "consume: copy"} <= spans
        times = to.overlap_times(timelines)
        assert 0 < times.first_ns <= times.gemm_end_ns
        assert json.loads(to.to_chrome_trace(timelines))["traceEvents"]


def test_the_repr_names_the_device():
    with made() as layer:
        assert "cuda:0" in repr(layer.layers[0])
        assert layer.layers[0].sizes.total_bytes > 0


# ---- ids -----------------------------------------------------------------------------------------


@pytest.mark.case("D4.1")
def test_minus_one_is_skipped_and_weights_are_not_renormalised():
    """D4.1"""
    with made(ONE_RANK) as layer:
        ids = np.array([[0, -1], [3, 2]], np.int32)
        weights = np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)
        x = layer.host.random_x(np.random.default_rng(4), [ids])
        layer.check(x, [ids], [weights])


@pytest.mark.case("D4.3")
def test_both_widths_of_ids_give_the_same_result():
    """D4.3"""
    with made(to.Placement.even(world=1, experts=8)) as layer:
        wide = np.array([[5, 6], [7, 0]], np.int64)
        weights = [np.array([[0.5, 0.5], [0.25, 0.75]], np.float32)]
        x = layer.host.random_x(np.random.default_rng(5), [wide])
        got = [layer.check(x, [wide.astype(kind)], weights) for kind in (np.int32, np.int64)]
        assert same_bits(*got)


@pytest.mark.case("D4.4")
@pytest.mark.parametrize(
    ("bad", "dtype"),
    [(-2, np.int32), (EXPERTS, np.int64), ((0xFFFF0BDC << 32) + 3 - 2**64, np.int64)],
)
def test_ids_out_of_range_are_named_at_full_width_and_refused_on_all_ranks(bad: int, dtype: Any):
    """D4.4: the low word alone would be right."""
    with made() as layer:
        x, ids, weights = random_call(layer, 6)
        bad_ids = [part.astype(dtype) for part in ids]
        bad_ids[2][17, 1] = bad
        layer.start(layer.put(x, bad_ids, weights))
        with pytest.raises(to.InvalidArgument) as error:
            layer.layers[2].synchronize()
        for word in (str(bad), "rank 2", "token 17", "slot 1"):
            assert word in str(error.value), str(error.value)
        for rank in (0, 1):
            with pytest.raises(to.CallRefused, match=f"rank 2 refused.*{bad}"):
                layer.layers[rank].synchronize()
        layer.check(x, ids, weights)  # and the layer stays usable


@pytest.mark.case("D4.5")
def test_row_strides_of_ids_and_weights_are_honoured():
    """D4.5: wide[:, :2] of [4, 8]."""
    with made(ONE_RANK) as layer:
        rng = np.random.default_rng(7)
        wide_ids = rng.integers(0, 4, (4, 8)).astype(np.int32)
        wide_weights = rng.random((4, 8), np.float32)
        ids, weights = wide_ids[:, :2], wide_weights[:, :2]
        x = layer.host.random_x(rng, [ids])
        wanted = layer.check(x, [ids], [weights])
        call = layer.put(x, [ids], [weights])
        call[0]["topk_ids"] = to_gpu(wide_ids)[:, :2]
        call[0]["topk_weights"] = to_gpu(wide_weights)[:, :2]
        settle()
        layer.start(call)
        layer.synchronize()
        assert same_bits(outs(call), wanted)


# ---- the weighted sum ----------------------------------------------------------------------------


@pytest.mark.case("D9.1")
def test_the_sum_over_slots_is_rounded_once():
    """D9.1: T = 256, k = 8, H = 4096. Each expert copies x with a sign, so that its rows are exact
    in bfloat16."""
    tokens, top_k, hidden, inner = 256, 8, 4096, 64
    placement = to.Placement.even(world=1, experts=16)
    with GpuLayer(placement, top_k=top_k, max_tokens=tokens, hidden=hidden, inner=inner) as layer:
        rng = np.random.default_rng(8)
        signs = rng.choice(np.float32([-1, 1]), 16)
        down = np.zeros((16, hidden, inner), np.float32)
        down[:, np.arange(hidden), np.arange(hidden) % inner] = signs[:, None]
        layer.down = [to_gpu(to.to_bfloat16(down))]
        ids = rng.integers(0, 16, (tokens, top_k))
        weights = rng.random((tokens, top_k), np.float32)
        x = to.to_bfloat16(rng.standard_normal((tokens, inner), np.float32))
        out = to.reference.as_float64(layer.run([x], [ids], [weights])[0])
    scale = (weights.astype(np.float64) * signs[ids]).sum(axis=1)
    values = to.reference.as_float64(x)[:, np.arange(hidden) % inner]
    wanted = scale[:, None] * values
    largest = np.abs(weights).sum(axis=1)[:, None] * np.abs(values)
    assert (np.abs(out - wanted) <= np.abs(wanted) * 2.0**-8 + largest * 2.0**-20).all()


@pytest.mark.case("D9.4")
def test_a_skipped_slot_is_not_read_even_with_weight_zero():
    """D9.4: everything that may be read by nobody is NaN."""
    with made(ONE_RANK, faults=to.CudaFaults(poison=True)) as layer:
        ids, weights = np.array([[0, -1]], np.int32), np.array([[1, 0]], np.float32)
        x = layer.host.random_x(np.random.default_rng(9), [ids])
        for _ in range(3):
            out = layer.check(x, [ids], [weights])
            assert np.isfinite(to.reference.as_float64(out[0])).all()


@pytest.mark.case("D9.5")
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_padding_spoils_nothing(layout: str):
    """D9.5: 130 rows of one expert, the other rows of its two bands are NaN."""
    placement = to.Placement.even(world=2, experts=2)
    with made(placement, layout=layout, faults=to.CudaFaults(poison=True), top_k=1) as layer:
        ids = [np.full((130, 1), 1), np.full((0, 1), 1)]
        weights = [np.ones((130, 1), np.float32), np.ones((0, 1), np.float32)]
        x = layer.host.random_x(np.random.default_rng(10), ids)
        for _ in range(2):
            layer.check(x, ids, weights)


@pytest.mark.case("D9.7")
def test_a_token_without_copies_is_exactly_zero():
    """D9.7: the output is 7 before."""
    with made(ONE_RANK) as layer:
        ids = np.array([[0, 1], [2, 3], [-1, -1], [1, 1]], np.int64)
        x = layer.host.random_x(np.random.default_rng(11), [ids])
        call = layer.put(x, [ids], [np.full((4, 2), 0.5, np.float32)])
        call[0]["out"].fill_(7.0)
        settle()
        layer.start(call)
        layer.synchronize()
        out = outs(call)[0]
        assert is_zero(out[2:3])
        assert not is_zero(out[:2])


# ---- CUDA graphs ---------------------------------------------------------------------------------


def captured(layer: GpuLayer, call: list[dict[str, Any]]) -> list[Any]:
    """A graph a rank."""
    import torch

    graphs = []
    for rank, stream in enumerate(layer.streams):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            layer.layers[rank].forward(**call[rank])
    return graphs


def replay(layer: GpuLayer, graphs: list[Any]) -> None:
    import torch

    for graph, stream in zip(graphs, layer.streams, strict=True):
        with torch.cuda.stream(stream):
            graph.replay()
    settle()
    for rank in layer.layers:
        rank.check()


@pytest.mark.case("D10.2")
def test_the_first_call_cannot_be_captured_and_says_so():
    """D10.2"""
    import torch

    with made(ONE_RANK) as layer:
        arguments = random_call(layer, 12, (5,))
        call = layer.put(*arguments)
        with (
            torch.cuda.graph(torch.cuda.CUDAGraph(), stream=layer.streams[0]),
            pytest.raises(to.InvalidArgument, match=r"cannot be captured in a graph.*first call"),
        ):
            layer.layers[0].forward(**call[0])
        layer.check(*arguments)


@pytest.mark.case("D10.3")
def test_a_capture_returns_at_once():
    """D10.3: captured kernels do not run, so nothing may wait for them."""
    with made(to.Placement.even(world=2, experts=4)) as layer:
        arguments = random_call(layer, 13, (40, 30))
        layer.check(*arguments)
        call = layer.put(*arguments)
        begin = time.monotonic()
        captured(layer, call)
        assert time.monotonic() - begin < 5


@pytest.mark.case("D10.4")
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("transfer", TRANSFERS)
@pytest.mark.parametrize("mode", ["overlapped", "serial"])
def test_a_replay_follows_what_the_tensors_hold(world: int, transfer: str, mode: str):
    """D10.4: x, ids and weights change between replays."""
    tokens = (70, 40)[:world]
    placement = to.Placement.even(world=world, experts=4)
    with made(placement, expert="silu_gate", transfer=transfer) as layer:
        first = random_call(layer, 14, tokens)
        layer.check(*first)
        call = layer.put(*first)
        for tensors in call:
            tensors["mode"] = mode
        graphs = captured(layer, call)
        for seed in (14, 15, 16):
            arguments = random_call(layer, seed, tokens)
            for tensors, x, ids, weights in zip(call, *arguments, strict=True):
                tensors["x"].copy_(to_gpu(x))
                tensors["topk_ids"].copy_(to_gpu(ids))
                tensors["topk_weights"].copy_(to_gpu(weights))
                tensors["out"].zero_()
            settle()
            replay(layer, graphs)
            wanted = layer.host.reference(*arguments)
            assert to.reference.compare(outs(call), wanted, "bfloat16").ok


@pytest.mark.case("D7.8")
def test_many_replays_need_no_memory_of_the_capture():
    """D7.8: other work uses freed memory meanwhile."""
    import torch

    with made(to.Placement.even(world=2, experts=4)) as layer:
        arguments = random_call(layer, 17, (70, 40))
        wanted = layer.check(*arguments)
        call = layer.put(*arguments)
        graphs = captured(layer, call)
        for number in range(50):
            scratch = [torch.full((size,), -1, device="cuda:0") for size in (1 << 10, 1 << 20)]
            for tensors in call:
                tensors["out"].fill_(number)
            settle()
            del scratch
            replay(layer, graphs)
            assert same_bits(outs(call), wanted)


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_calls_and_replays_may_take_turns(transfer: str):
    with made(to.Placement.even(world=2, experts=4), transfer=transfer) as layer:
        arguments = random_call(layer, 18, (70, 40))
        wanted = layer.check(*arguments)
        call = layer.put(*arguments)
        graphs = captured(layer, call)
        for _ in range(3):
            replay(layer, graphs)
            assert same_bits(outs(call), wanted)
            assert same_bits(layer.run(*arguments), wanted)


@pytest.mark.case("D10.8")
def test_a_call_waits_for_nothing_on_the_gpu():
    """D10.8: ids are counted and planned on the device, so the host goes on while the stream is
    still busy with what comes before."""
    import torch

    with made(ONE_RANK, expert="gelu") as layer:
        arguments = random_call(layer, 19, (300,))
        layer.check(*arguments)
        call = layer.put(*arguments)
        stream = layer.streams[0]
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000_000)  # cycles, about a second
            layer.start(call)
            assert not stream.query()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        layer.synchronize()
        assert stream.query()
        wanted = layer.host.reference(*arguments)
        assert to.reference.compare(outs(call), wanted, "bfloat16").ok


# ---- errors --------------------------------------------------------------------------------------


def test_a_call_that_one_rank_refuses_ends_on_all_and_the_layer_stays_usable():
    with made() as layer:
        arguments = random_call(layer, 20)
        call = layer.put(*arguments)
        call[1]["x"] = as_dtype(np.zeros((0, 32), np.float32), "bfloat16")  # on the CPU
        for rank in (0, 2):
            layer.layers[rank].forward(**call[rank], stream=layer.streams[rank])
        with pytest.raises(to.InvalidArgument, match="x must be on cuda:0, got cpu:0"):
            layer.layers[1].forward(**call[1], stream=layer.streams[1])
        for rank in (0, 2):
            with pytest.raises(to.CallRefused, match="rank 1 refused the call: x must be on"):
                layer.layers[rank].synchronize()
        layer.check(*arguments)


def test_a_rank_that_is_missing_is_named():
    with made(timeout_s=0.5) as layer:
        arguments = random_call(layer, 21)
        layer.check(*arguments)
        call = layer.put(*arguments)
        for rank in (0, 2):
            layer.layers[rank].forward(**call[rank], stream=layer.streams[rank])
        with pytest.raises(to.WaitTimeout) as error:
            layer.layers[0].synchronize()
        assert error.value.peer == 1
        with pytest.raises(to.WaitTimeout):
            layer.layers[0].forward(**call[0], stream=layer.streams[0])
        # The GPU itself is as it was.
        assert to_host(to_gpu(np.arange(4, dtype=np.float32)) + 1).tolist() == [1, 2, 3, 4]
