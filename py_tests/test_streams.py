"""Which CUDA stream a call goes to. No GPU: frameworks, streams and the extension are stand-ins."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dlpack_producer import CUDA, Producer
from support import executors

import tileoverlap as to
from tileoverlap._stream import launch_stream

X = np.zeros((2, 8), np.float32)
IDS = np.zeros((2, 1), np.int32)
WEIGHTS = np.ones((2, 1), np.float32)
DOWN = np.zeros((1, 8, 8), np.float32)


class Speaks:
    """A stream with __cuda_stream__."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def __cuda_stream__(self) -> Any:
        return self.said


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in whose current streams are 0x700 + device."""
    fake = SimpleNamespace(
        Tensor=type("Tensor", (), {}),
        cuda=SimpleNamespace(
            current_stream=lambda device: SimpleNamespace(cuda_stream=0x700 + device)
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in whose current streams are 0xc00 + device, by current device."""
    devices: list[int] = [0]

    @contextlib.contextmanager
    def device(number: int):
        devices.append(number)
        yield
        devices.pop()

    fake = SimpleNamespace(
        ndarray=type("ndarray", (), {}),
        cuda=SimpleNamespace(
            Device=device, get_current_stream=lambda: SimpleNamespace(ptr=0xC00 + devices[-1])
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.mark.parametrize(
    ("stream", "address"),
    [
        (0, 0),
        (2, 2),
        (0x7F00DEADBEEF, 0x7F00DEADBEEF),
        (2**64 - 1, 2**64 - 1),
        (np.uint64(7), 7),
        (Speaks((0, 0x55)), 0x55),
        (Speaks([0, 0]), 0),
        (SimpleNamespace(cuda_stream=0x66), 0x66),
        (SimpleNamespace(ptr=0x77), 0x77),
    ],
)
def test_a_stream_is_an_address_or_an_object_that_has_one(stream: Any, address: int):
    assert launch_stream(stream, X, 0) == address


@pytest.mark.parametrize(
    ("stream", "kind", "words"),
    [
        (-1, to.InvalidArgument, ["stream must be at least 0", "-1"]),
        (2**64, to.InvalidArgument, ["stream must be at most"]),
        (True, to.DTypeError, ["stream must be an address", "bool"]),
        (1.5, to.DTypeError, ["stream must be an address", "__cuda_stream__", "float"]),
        ("side", to.DTypeError, ["stream must be an address", "str"]),
        (Speaks((3, 1)), to.InvalidArgument, ["version 3", "known is version 0"]),
        (Speaks(7), to.InvalidArgument, ["must return (version, address)", "7"]),
        (Speaks((0, -4)), to.InvalidArgument, ["__cuda_stream__", "-4"]),
        (SimpleNamespace(cuda_stream=None), to.DTypeError, ["stream.cuda_stream", "None"]),
        (SimpleNamespace(ptr=-2), to.InvalidArgument, ["stream.ptr", "-2"]),
    ],
)
def test_what_is_no_stream_is_refused(stream: Any, kind: type[Exception], words: list[str]):
    with pytest.raises(kind) as error:
        launch_stream(stream, X, 0)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_none_is_the_current_stream_of_the_framework_that_owns_out(torch, cupy):
    assert launch_stream(None, torch.Tensor(), 3) == 0x703
    assert launch_stream(None, type("Parameter", (torch.Tensor,), {})(), 1) == 0x701
    assert launch_stream(None, cupy.ndarray(), 2) == 0xC02
    assert launch_stream(9, torch.Tensor(), 3) == 9


@pytest.mark.parametrize("out", [X, to.Bf16Array.empty((2, 2)), Producer(X, device=(CUDA, 0))])
def test_none_is_never_the_legacy_stream_for_those_who_have_no_current_one(torch, cupy, out):
    with pytest.raises(to.InvalidArgument) as error:
        launch_stream(None, out, 0)
    assert f"out is a {type(out).__module__}.{type(out).__name__}" in str(error.value)
    assert "stream must be given" in str(error.value)
    assert "stream=0" in str(error.value)


@pytest.mark.parametrize("stream", [0, Speaks((0, 1))])
def test_the_cpu_executor_has_no_streams(stream: Any):
    placement = to.Placement.even(world=2, experts=2)
    made = executors(2)
    layers = [
        executor.prepare_layer(
            placement=placement,
            dtype="float32",
            expert="single",
            hidden=8,
            inner=8,
            top_k=1,
            max_tokens=2,
            timeout_s=60,
        )
        for executor in made
    ]
    refusal = "stream must be None.*the CPU executor has no streams"
    with pytest.raises(to.InvalidArgument, match=refusal):
        layers[0].forward(X, IDS, WEIGHTS, down=DOWN, out=X.copy(), stream=stream)
    layers[1].forward(X, IDS, WEIGHTS, down=DOWN, out=X.copy())
    with pytest.raises(to.CallRefused, match="rank 0 refused"):  # and does not wait for us
        layers[1].synchronize()

    session = made[0].prepare(
        placement=placement, dtype="float32", k=8, n=8, top_k=1, max_tokens=2, timeout_s=60
    )
    plan = to.make_plan(placement, 0, to.count_routes(placement, [IDS, IDS]), n=8)
    rows = np.zeros((plan.rows, 8), np.float32)
    with pytest.raises(to.InvalidArgument, match=refusal):
        session.run(plan, rows, DOWN, IDS, WEIGHTS, out=X.copy(), stream=stream)


class Core:
    """In place of the extension's layer: calls complete when told."""

    rank = 0

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.tensors: list[Any] = []
        self.limits: list[int] = []
        self.complete = True

    def forward(self, *arguments: Any) -> None:
        *tensors, _, stream = arguments
        self.streams.append(stream)
        self.tensors.append(tensors)

    def wait(self, limit_ns: int) -> bool:
        self.limits.append(limit_ns)
        return self.complete


def on_gpu(array: np.ndarray) -> Producer:
    return Producer(array, device=(CUDA, 0))


def forward(layer: Any, **change: Any) -> None:
    tensors = {"x": X, "topk_ids": IDS, "topk_weights": WEIGHTS, "down": DOWN, "out": X, **change}
    layer.forward(
        **{name: value for name, value in tensors.items() if name != "stream"},
        stream=tensors.get("stream", 5),
    )


def test_the_stream_is_fixed_before_producers_are_asked_which_do_not_wait():
    asked: list[str] = []

    class Noted(Speaks):
        def __cuda_stream__(self) -> Any:
            asked.append("stream")
            return super().__cuda_stream__()

    class Tensor(Producer):
        def __dlpack__(self, **request: Any) -> Any:
            asked.append("tensor")
            return super().__dlpack__(**request)

    core = Core()
    layer: Any = to.MoeLayer(core, cuda_device=0)  # type: ignore[arg-type]
    x = Tensor(X.copy(), device=(CUDA, 0))
    forward(layer, x=x, stream=Noted((0, 0xABC)))
    assert core.streams == [0xABC]
    assert asked == ["stream", "tensor"]
    assert x.requests == [{"stream": -1, "max_version": (1, 3)}]


def test_a_refused_call_tells_the_others_on_its_stream():
    core = Core()
    layer: Any = to.MoeLayer(core, cuda_device=0)  # type: ignore[arg-type]
    with pytest.raises(to.DTypeError, match="x must be a tensor"):
        forward(layer, x=[1.0], stream=0xABC)
    with pytest.raises(to.InvalidArgument, match="stream must be given"):
        forward(layer, stream=None)
    assert core.tensors == [[None, None, None, [], False, [], False, None]] * 2
    assert core.streams == [0xABC, 0]


def test_who_never_synchronizes_keeps_no_tensors_for_ever():
    core = Core()
    layer: Any = to.MoeLayer(core, cuda_device=0)  # type: ignore[arg-type]
    lent = []
    for _ in range(300):
        lent.append(on_gpu(X.copy()))
        forward(layer, x=lent[-1])
        core.tensors.clear()
        assert sum(x.deleted == 0 for x in lent) <= 64
    assert set(core.limits) == {0}
    assert len(core.limits) < 10  # nobody asks in each call


def test_tensors_of_calls_that_may_still_run_are_kept():
    core = Core()
    core.complete = False
    layer: Any = to.MoeLayer(core, cuda_device=0)  # type: ignore[arg-type]
    lent = [on_gpu(X.copy()) for _ in range(1030)]
    for x in lent:
        forward(layer, x=x)
    core.tensors.clear()
    assert not any(x.deleted for x in lent)
    assert max(core.limits) > 0  # so many cannot be under way: the host waits a while
    core.complete = True
    forward(layer)
    assert all(x.deleted == 1 for x in lent)
