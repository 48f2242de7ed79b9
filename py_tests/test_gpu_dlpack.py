"""Tensors on a GPU by DLPack: descriptions of every kind, ownership, views."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from dlpack_producer import BFLOAT, CUDA, Producer
from gpu_support import DeviceMemory, gpu_marks, settle, to_gpu, to_host
from support import LIMIT_S

import tileoverlap as to

pytestmark = gpu_marks()

READ_ONLY, IS_COPIED = 1, 2
T, K, N = 4, 256, 16

X = to.to_bfloat16(np.random.default_rng(12).standard_normal((T, K), np.float32))
DOWN = to.to_bfloat16(np.random.default_rng(13).standard_normal((1, N, K), np.float32))
IDS = np.zeros((T, 1), np.int32)
WEIGHTS = np.ones((T, 1), np.float32)
WANTED = to.reference.as_float64(X) @ to.reference.as_float64(DOWN)[0].T


@pytest.fixture
def layer():
    """One rank, one expert: y = down x."""
    transport = to.DeviceWorld(0).transport(0)
    with to.CudaExecutor(transport).prepare_layer(
        placement=to.Placement.even(world=1, experts=1),
        dtype="bfloat16",
        expert="single",
        hidden=N,
        inner=K,
        top_k=1,
        max_tokens=T,
        timeout_s=LIMIT_S,
    ) as made:
        yield made


@pytest.fixture
def side():
    import torch

    return torch.cuda.Stream("cuda:0")


def lend(tensor: Any, **description: Any) -> Producer:
    """A torch tensor under whatever description the test wants; bfloat16 unless it says another."""
    if str(tensor.dtype) == "torch.bfloat16":
        description = {"code": BFLOAT, **description}
    return Producer(DeviceMemory(tensor), device=(CUDA, 0), **description)  # type: ignore[arg-type]


def arguments(**change: Any) -> dict[str, Any]:
    tensors = {
        "x": to_gpu(X),
        "topk_ids": to_gpu(IDS),
        "topk_weights": to_gpu(WEIGHTS),
        "down": to_gpu(DOWN),
        "out": to_gpu(to.Bf16Array(np.full((T, N), 0x7FC0, np.uint16))),
        **change,
    }
    settle()
    return tensors


def forward(layer: to.MoeLayer, side: Any, **change: Any) -> Any:
    tensors = arguments(**change)
    layer.forward(**tensors, stream=side)
    out = tensors["out"]
    del tensors, change
    gc.collect()
    layer.synchronize()
    return out


def assert_right(out: Any) -> None:
    assert to.reference.compare([to_host(out)], [WANTED], "bfloat16").ok


@pytest.mark.parametrize("old", [False, True])
def test_both_kinds_of_capsules_are_taken_and_given_back_once(layer, side, old: bool):
    x = lend(to_gpu(X), old=old)
    assert_right(forward(layer, side, x=x))
    assert x.deleted == 1
    assert all(request["stream"] == -1 for request in x.requests)  # the order is ours to arrange


@pytest.mark.case("D12.1")
def test_null_strides_are_row_major(layer, side):
    """D12.1"""
    assert_right(forward(layer, side, x=lend(to_gpu(X), null_strides=True)))


@pytest.mark.case("D12.2")
def test_byte_offsets_are_honoured(layer, side):
    """D12.2: 512 into a larger buffer."""
    import torch

    buffer = torch.full((256 + T * K,), float("nan"), dtype=torch.bfloat16, device="cuda:0")
    buffer[256:] = to_gpu(X).ravel()
    x = lend(buffer, shape=(T, K), strides=(K, 1), byte_offset=512)
    assert_right(forward(layer, side, x=x))


@pytest.mark.case("D12.2")
def test_a_misaligned_byte_offset_is_refused_with_offset_and_size(layer, side):
    """D12.2: 3."""
    import torch

    buffer = torch.zeros(T * K + 8, dtype=torch.bfloat16, device="cuda:0")
    x = lend(buffer, shape=(T, K), strides=(K, 1), byte_offset=3)
    with pytest.raises(to.InvalidArgument, match=r"x must start.*element size of 2.*byte_offset 3"):
        forward(layer, side, x=x)
    assert x.deleted == 1
    assert_right(forward(layer, side))


@pytest.mark.case("D12.3")
@pytest.mark.parametrize("old", [False, True])
def test_memory_is_given_back_only_when_the_work_is_done(layer, side, old: bool):
    """D12.3: the deleter fills the memory with NaN; nobody else holds the tensors."""
    import torch

    assert_right(forward(layer, side))
    lent = {
        name: lend(to_gpu(tensor), old=old, scribble=True)
        for name, tensor in (("x", X), ("topk_weights", WEIGHTS), ("down", DOWN))
    }
    tensors = arguments(**lent)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    layer.forward(**tensors, stream=side)
    counts = list(lent.values())
    del lent
    out = tensors.pop("out")
    tensors.clear()
    gc.collect()
    assert [producer.deleted for producer in counts] == [0, 0, 0]
    layer.synchronize()
    assert_right(out)
    assert [producer.deleted for producer in counts] == [1, 1, 1]


@pytest.mark.case("D12.4")
@pytest.mark.parametrize("given", ["side", "default", "not given"])
def test_input_of_a_slow_kernel_is_right_in_the_order_of_the_stream(layer, given: str):
    """D12.4: x is made on a side stream. A call on another stream is ordered behind it as any work
    of the framework is; no producer is asked to wait."""
    import torch

    side, default = torch.cuda.Stream("cuda:0"), torch.cuda.default_stream(0)
    assert_right(forward(layer, side))
    x, ready = to_gpu(X), to_gpu(X)
    x.fill_(float("nan"))
    tensors = arguments(x=x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.copy_(ready)
        if given == "side":
            layer.forward(**tensors, stream=side)
        elif given == "not given":
            layer.forward(**tensors)
    if given == "default":
        default.wait_stream(side)
        layer.forward(**tensors, stream=default)
    layer.synchronize()
    assert_right(tensors["out"])


@pytest.mark.case("D12.5")
def test_the_result_is_ready_on_the_stream_of_the_call(layer, side):
    """D12.5: read at once on another stream, behind an event."""
    import torch

    assert_right(forward(layer, side))
    reader = torch.cuda.Stream("cuda:0")
    tensors = arguments()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
    layer.forward(**tensors, stream=side)
    with torch.cuda.stream(reader):
        reader.wait_event(side.record_event())
        copy = torch.from_dlpack(tensors["out"]).clone()
    reader.synchronize()
    assert_right(copy)


@pytest.mark.case("D12.7")
@pytest.mark.parametrize(
    ("kind", "change", "name"),
    [
        ("float16", {}, "float16"),
        ("float32", {}, "float32"),
        ("int8", {}, "int8"),
        ("complex64", {}, "complex64"),
        ("bool", {}, "bool"),
        ("bfloat16", {"lanes": 4}, "bfloat16 with 4 lanes"),
    ],
)
def test_other_types_are_refused_by_name_with_what_is_supported(layer, side, kind, change, name):
    """D12.7"""
    import torch

    x = torch.zeros(T, K, dtype=getattr(torch, kind), device="cuda:0")
    for tensor in (lend(x, **change), *([x] if not change else [])):
        with pytest.raises(TypeError) as error:
            forward(layer, side, x=tensor)
        assert str(error.value).startswith("x must be bfloat16, got ")
        assert name in str(error.value)
    assert_right(forward(layer, side))


@pytest.mark.case("D12.8")
def test_views_are_honoured_or_refused(layer, side):
    """D12.8: a slice of wider rows works; a transposed tensor and stride 0 are refused."""
    import torch

    wide = torch.full((T, 512), float("nan"), dtype=torch.bfloat16, device="cuda:0")
    wide[:, :K] = to_gpu(X)
    assert_right(forward(layer, side, x=wide[:, :K]))
    x = to_gpu(X)
    for view in (x.t().contiguous().t(), x[:1].expand(T, K)):
        with pytest.raises(to.InvalidArgument, match="x must have contiguous rows"):
            forward(layer, side, x=view)
    assert_right(forward(layer, side))


@pytest.mark.case("D12.9")
def test_read_only_inputs_are_taken_and_outputs_refused(layer, side):
    """D12.9"""
    locked = {
        "x": lend(to_gpu(X), flags=READ_ONLY),
        "topk_weights": lend(to_gpu(WEIGHTS), flags=READ_ONLY),
        "down": lend(to_gpu(DOWN), flags=READ_ONLY),
    }
    assert_right(forward(layer, side, **locked))
    out = to_gpu(to.Bf16Array(np.zeros((T, N), np.uint16)))
    with pytest.raises(to.InvalidArgument, match=r"out is written to.*read-only"):
        forward(layer, side, out=lend(out, flags=READ_ONLY))
    with pytest.raises(to.InvalidArgument, match=r"out is written to.*copy"):
        forward(layer, side, out=lend(out, flags=IS_COPIED))
    assert_right(forward(layer, side))


def test_null_data_is_legal_only_without_elements(layer, side):
    import torch

    nothing = torch.zeros(0, K, dtype=torch.bfloat16, device="cuda:0")
    out = forward(
        layer,
        side,
        x=lend(nothing, null_data=True),
        topk_ids=to_gpu(IDS[:0]),
        topk_weights=to_gpu(WEIGHTS[:0]),
        out=torch.zeros(0, N, dtype=torch.bfloat16, device="cuda:0"),
    )
    assert tuple(out.shape) == (0, N)
    with pytest.raises(to.InvalidArgument, match=r"x \[4, 256\] has null data"):
        forward(layer, side, x=lend(to_gpu(X), null_data=True))


def test_tensors_that_require_grad_are_refused_with_what_torch_says(layer, side):
    down = to_gpu(DOWN).requires_grad_()
    with pytest.raises(to.InvalidArgument, match=r"down cannot be shared.*grad"):
        forward(layer, side, down=down)
    assert_right(forward(layer, side, down=down.detach()))
