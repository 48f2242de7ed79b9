"""The whole layer of W ranks on one GPU: overlapped beside serial, right or not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tileoverlap.bench.checked import check_layer
from tileoverlap.bench.loop_back import Choice
from tileoverlap.bench.one_gpu import OneGpuRanks
from tileoverlap.bench.routed import Call, make_call, up_rows
from tileoverlap.bench.router import mode_name
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.timing import Variant, interleaved
from tileoverlap.bench.torch_layer import loop_layer

__all__ = ["measure_correctness", "measure_layer"]

Row = dict[str, Any]
Launch = Callable[[], Any]


def measure_layer(
    torch: Any,
    shape: Shape,
    choice: Choice,
    *,
    comm_sms: int | None = None,
    mode: str = "balanced",
    dtype: str = "bfloat16",
    expert: str = "silu_gate",
    repetitions: int = 50,
) -> Row:
    """One row; times are medians with 10th and 90th percentiles, in us, from the first rank's begin
    to the last rank's end.

    Dispatch, experts, return and weighted sum of W ranks that share the GPU's SMs evenly; the
    router's own product is not part of it.

    - serial: the return begins when the GEMM, on all SMs of its rank, has ended. b1: the same in a
      CUDA graph a rank.
    - ours: overlapped. ours_graph: the same in a CUDA graph a rank.
    - torch_loop: the layer in torch on the whole GPU, see loop_layer. Without a link and without
      ranks it is no base of the return, but what a cuBLAS call an expert costs.

    Raises:
        WrongResult: outputs that differ in a bit, or one that is off the float64 reference; nothing
            is timed then.
    """
    torch.cuda.empty_cache()  # workspaces are not torch's
    call = make_call(torch, shape, mode, expert=expert, dtype=dtype)
    with OneGpuRanks(torch, call, choice, dtype=dtype, comm_sms=comm_sms) as ranks:
        ranks.call("serial")  # the first call cannot be captured
        ranks.settle()
        launches: dict[str, Launch] = {
            "serial": partial(ranks.call, "serial"),
            "b1": ranks.captured("serial"),
            "ours": partial(ranks.call, "overlapped"),
            "ours_graph": ranks.captured("overlapped"),
        }
        checked = check_layer(torch, call, ranks.out, launches, ranks.settle, dtype=dtype)
        checked.require(dtype)
        loop_out = call.new_output()
        loop: dict[str, Launch] = {"torch_loop": loop_layer(torch, call, loop_out)}
        check_layer(
            torch, call, loop_out, loop, torch.cuda.synchronize, dtype=dtype, inputs=1
        ).require(dtype)
        variants = {name: Variant(launch) for name, launch in (launches | loop).items()}
        times = interleaved(torch, variants, repetitions)
        ranks.settle()
        us = {name: timing.median for name, timing in times.items()}
        best = min(us["ours"], us["ours_graph"])
        copies = call.ids.numel()
        flops = 2.0 * copies * shape.n * (shape.k + up_rows(shape, expert))
        row = _described(shape, choice, call, ranks, mode, dtype)
        for name, timing in times.items():
            row |= {
                f"{name}_us": timing.median,
                f"{name}_p10_us": timing.p10,
                f"{name}_p90_us": timing.p90,
            }
    return row | {
        "best_us": best,
        "best_tflops": flops / best * 1e-6,
        "over_serial": us["serial"] / us["ours"],
        "over_b1": us["b1"] / best,
        "over_torch_loop": us["torch_loop"] / best,
        "per_token": checked.per_token,
        "relative_l2": checked.relative_l2,
    }


def measure_correctness(
    torch: Any,
    shape: Shape,
    choice: Choice,
    *,
    comm_sms: int | None = None,
    mode: str = "balanced",
    dtype: str = "bfloat16",
    expert: str = "single",
    inputs: int = 3,
) -> Row:
    """One row: are overlapped and serial calls equal in every bit, and how far are they from the
    float64 reference (the paper's Table 3)? `ok` says whether all is right.

    Each of `inputs` calls has other tokens; buffers that nobody may read hold NaN.
    """
    torch.cuda.empty_cache()  # workspaces are not torch's
    call = make_call(torch, shape, mode, expert=expert, dtype=dtype)
    with OneGpuRanks(torch, call, choice, dtype=dtype, comm_sms=comm_sms, poison=True) as ranks:
        launches: dict[str, Launch] = {
            name: partial(ranks.call, name) for name in ("serial", "overlapped")
        }
        checked = check_layer(
            torch, call, ranks.out, launches, ranks.settle, dtype=dtype, inputs=inputs
        )
        return _described(shape, choice, call, ranks, mode, dtype) | {
            "inputs": inputs,
            "bit_equal": not checked.differing,
            "per_token": checked.per_token,
            "relative_l2": checked.relative_l2,
            "ok": checked.ok,
        }


def _described(
    shape: Shape, choice: Choice, call: Call, ranks: OneGpuRanks, mode: str, dtype: str
) -> Row:
    """What is measured."""
    return {
        "shape": shape.name,
        "mode": mode_name(mode),
        "dtype": dtype,
        "expert": call.expert,
        "layout": choice.layout,
        "world": shape.world,
        "tokens": shape.tokens,
        "top_k": shape.top_k,
        "experts": shape.experts_a_rank,
        "n": shape.n,
        "k": shape.k,
        "kernel": ranks.share.kernel,
        "tile": list(choice.tile),
        "group": choice.group,
        "bands_per_segment": choice.bands_per_segment,
        "sms_a_rank": ranks.share.sms,
        "comm_sms": ranks.share.comm_sms,
    }
