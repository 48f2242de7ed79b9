"""Session.run on a GPU: the return path alone, its streams, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_producer import CUDA, Producer
from gpu_support import DTYPES, gpu_marks, outs, settle, to_gpu
from support import (
    LIMIT_S,
    as_dtype,
    assert_close,
    dispatched_rows,
    executors,
    nan_filled,
    random_ids,
    random_weights,
    same_bits,
)

import tileoverlap as to

pytestmark = gpu_marks()

EXPERTS, TOP_K, K, N = 7, 2, 64, 136


class World:
    """Sessions of all ranks on one GPU, a stream each."""

    def __init__(
        self,
        world: int = 3,
        *,
        dtype: str = "bfloat16",
        layout: str = "compact",
        faults: to.CudaFaults | None = None,
        **options: Any,
    ) -> None:
        import torch

        self.placement = to.Placement.even(world=world, experts=EXPERTS)
        self.dtype, self.layout = dtype, layout
        self.options = {
            "placement": self.placement,
            "dtype": dtype,
            "k": K,
            "n": N,
            "top_k": TOP_K,
            "max_tokens": 300,
            "layout": layout,
            "timeout_s": LIMIT_S,
            **options,
        }
        self.streams = [torch.cuda.Stream("cuda:0") for _ in range(world)]
        self.sessions = [
            to.CudaExecutor(transport, faults=faults).prepare(**self.options)
            for transport in to.DeviceWorld(0, world).transports
        ]

    def call(self, seed: int, tokens: tuple[int, ...] = (200, 0, 290)) -> Call:
        return Call(self, seed, tokens[: len(self.sessions)])

    def synchronize(self) -> None:
        for session in self.sessions:
            session.synchronize()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: Any) -> None:
        for session in self.sessions:
            session.close()


class Call:
    """One call's tensors on the host (lists by rank) and on the GPU (arguments by rank)."""

    def __init__(self, world: World, seed: int, tokens: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        placement, dtype = world.placement, world.dtype
        self.world = world
        self.ids = [random_ids(rng, t, TOP_K, EXPERTS, skipped=0.1) for t in tokens]
        counts = to.count_routes(placement, self.ids)
        self.plans = [
            to.make_plan(placement, rank, counts, n=N, layout=world.layout)
            for rank in range(len(tokens))
        ]
        x = [as_dtype(rng.standard_normal((t, K), np.float32), dtype) for t in tokens]
        self.x = [to.reference.as_float64(part).astype(np.float32) for part in x]
        self.rows = [as_dtype(r, dtype) for r in dispatched_rows(self.plans, self.ids, self.x)]
        self.weights = [random_weights(rng, part) for part in self.ids]
        down = rng.standard_normal((EXPERTS, N, K), np.float32)
        self.down = as_dtype(down * np.float32(K**-0.5), dtype)
        self.args = [
            {
                "rows": to_gpu(self.rows[rank]),
                "weights": to_gpu(self.down[self.mine(rank)]),
                "topk_ids": to_gpu(self.ids[rank]),
                "topk_weights": to_gpu(self.weights[rank]),
                "out": to_gpu(nan_filled((t, N), dtype)),
            }
            for rank, t in enumerate(tokens)
        ]
        settle()

    def mine(self, rank: int) -> slice:
        experts = self.world.placement.experts_of(rank)
        return slice(experts.start, experts.stop)

    def start(self, mode: str = "overlapped") -> None:
        for rank in range(len(self.plans)):
            self.start_one(rank, stream=self.world.streams[rank], mode=mode)

    def start_one(self, rank: int = 0, **change: Any) -> None:
        arguments = {**self.args[rank], **change}
        self.world.sessions[rank].run(self.plans[rank], **arguments)

    @property
    def outs(self) -> list[Any]:
        return outs(self.args)

    def check(self) -> None:
        wanted = to.reference.return_path(self.x, self.ids, self.weights, down=self.down)
        assert_close(self.outs, wanted, self.world.dtype)

    def on_cpu(self) -> list[Any]:
        """What the CPU executor makes of the same tensors."""
        got = [nan_filled((len(part), N), self.world.dtype) for part in self.ids]
        sessions = [e.prepare(**self.world.options) for e in executors(len(self.plans))]
        for rank, session in enumerate(sessions):
            session.run(
                self.plans[rank],
                self.rows[rank],
                self.down[self.mine(rank)],
                self.ids[rank],
                self.weights[rank],
                out=got[rank],
            )
        for session in sessions:
            session.synchronize()
        return got


@pytest.fixture
def alone():
    """A world of one rank."""
    with World(1) as world:
        yield world


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_rows_come_back_weighted_and_summed(dtype: str, layout: str):
    with World(dtype=dtype, layout=layout, faults=to.CudaFaults(poison=True)) as world:
        overlapped, serial = world.call(1), world.call(1)
        overlapped.start()
        serial.start("serial")
        world.synchronize()
        overlapped.check()
        assert same_bits(overlapped.outs, serial.outs)
        cpu = [to.reference.as_float64(part) for part in overlapped.on_cpu()]
        assert_close(overlapped.outs, cpu, dtype)


def test_runs_follow_each_other_without_waiting():
    with World(faults=to.CudaFaults(max_delay_us=50)) as world:
        calls = [world.call(seed, (10 * seed, 0, 250)) for seed in range(8)]
        for call in calls:
            call.start()
        world.synchronize()
        for call in calls:
            call.check()
        assert [session.epoch for session in world.sessions] == [8] * 3


def test_ranks_that_run_different_plans_are_told_so():
    with World() as world:
        call, other = world.call(1), world.call(2)
        call.plans[1], call.args[1] = other.plans[1], other.args[1]
        call.start()
        with pytest.raises(to.WaitTimeout) as error:
            world.sessions[0].synchronize()
        assert error.value.what == "same_plan"


def test_who_never_synchronizes_keeps_no_tensors_for_ever(alone: World):
    call = alone.call(3)
    for number in range(300):
        call.start()
        if number % 20 == 0:
            settle()
    assert len(alone.sessions[0]._borrowed) <= 100
    settle()
    call.check()


# ---- streams -------------------------------------------------------------------------------------


class Speaks:
    """A stream with nothing but __cuda_stream__."""

    def __init__(self, stream: Any) -> None:
        self._address = stream.cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


@pytest.mark.case("D12.4")
@pytest.mark.parametrize("given", ["torch", "address", "protocol", "current", "legacy"])
def test_rows_that_slow_work_of_the_stream_makes_are_waited_for(alone: World, given: str):
    """D12.4: the order is that of the stream of the call, whichever way it is given."""
    import torch

    call = alone.call(4)
    call.start()  # once before: the first run waits on the host
    alone.synchronize()
    rows = call.args[0]["rows"].clone()
    call.args[0]["rows"].fill_(float("nan"))
    call.args[0]["out"].fill_(float("nan"))
    settle()
    side = torch.cuda.default_stream(0) if given == "legacy" else torch.cuda.Stream("cuda:0")
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        call.args[0]["rows"].copy_(rows)
        stream = {
            "torch": side,
            "address": side.cuda_stream,
            "protocol": Speaks(side),
            "current": None,
            "legacy": 0,
        }[given]
        call.start_one(stream=stream)
        assert not side.query()
    side.synchronize()
    call.check()


def test_a_stream_of_cupy_is_taken(alone: World):
    cupy = pytest.importorskip("cupy")
    call = alone.call(5)
    stream = cupy.cuda.Stream(non_blocking=True)
    call.start_one(stream=stream)
    stream.synchronize()
    call.check()


def test_the_current_stream_of_cupy_is_found():
    cupy = pytest.importorskip("cupy")
    with World(1, dtype="float16") as world:
        call = world.call(6)
        out = cupy.full(call.args[0]["out"].shape, cupy.nan, cupy.float16)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            call.start_one(out=out)
        stream.synchronize()
        wanted = to.reference.return_path(call.x, call.ids, call.weights, down=call.down)
        assert_close([cupy.asnumpy(out)], wanted, "float16")


def test_none_is_never_the_legacy_stream(alone: World):
    call = alone.call(7)
    numpy_out = np.zeros((len(call.ids[0]), N), np.float16)
    with pytest.raises(to.InvalidArgument, match=r"stream must be given: out is a numpy\.ndarray"):
        call.start_one(out=numpy_out)
    call.start_one()
    alone.synchronize()
    call.check()


@pytest.mark.case("D12.5")
def test_another_stream_reads_the_result_behind_an_event(alone: World):
    """D12.5: `out` is ready in the order of the call's stream."""
    import torch

    call = alone.call(8)
    reader, copy = torch.cuda.Stream("cuda:0"), torch.empty_like(call.args[0]["out"])
    for _ in range(5):
        call.args[0]["out"].fill_(float("nan"))
        settle()
        call.start()
        done = alone.streams[0].record_event()
        with torch.cuda.stream(reader):
            reader.wait_event(done)
            copy.copy_(call.args[0]["out"])
        reader.synchronize()
        call.args[0]["out"] = copy.clone()
        settle()
        call.check()


@pytest.mark.case("D10.7")
def test_a_run_cannot_be_captured_since_its_plan_lies_on_the_host(alone: World):
    """D10.7"""
    import torch

    call = alone.call(9)
    call.start()
    alone.synchronize()
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph(), stream=alone.streams[0]),
        pytest.raises(to.InvalidArgument, match=r"plan lies on the host.*capture a layer"),
    ):
        call.start_one()
    call.start()
    alone.synchronize()
    call.check()


# ---- errors --------------------------------------------------------------------------------------


def unaligned(tensor: Any) -> Any:
    """The same values, with rows that start 2 bytes behind a multiple of 16."""
    import torch

    wide = torch.zeros(
        *tensor.shape[:-1], tensor.shape[-1] + 8, dtype=tensor.dtype, device="cuda:0"
    )
    wide[..., 1 : tensor.shape[-1] + 1] = tensor
    return wide[..., 1 : tensor.shape[-1] + 1]


@pytest.mark.parametrize("name", ["rows", "weights", "out"])
def test_rows_must_start_at_multiples_of_16_bytes(alone: World, name: str):
    call = alone.call(10)
    words = rf"{name} must have rows that start at multiples of 16 bytes, got address"
    with pytest.raises(to.InvalidArgument, match=words):
        call.start_one(**{name: unaligned(call.args[0][name])}, stream=alone.streams[0])
    call.start()
    alone.synchronize()
    call.check()


@pytest.mark.parametrize("name", ["rows", "weights", "topk_ids", "topk_weights", "out"])
def test_tensors_must_lie_on_the_device_of_the_rank(alone: World, name: str):
    call = alone.call(11)
    call.start()
    alone.synchronize()
    host = {
        "rows": call.rows[0],
        "weights": call.down,
        "topk_ids": call.ids[0],
        "topk_weights": call.weights[0],
        "out": nan_filled((len(call.ids[0]), N), "bfloat16"),
    }[name]
    stream = alone.streams[0]
    with pytest.raises(to.InvalidArgument, match=f"{name} must be on cuda:0, got cpu:0"):
        call.start_one(**{name: host}, stream=stream)
    array, kind = (host.bits, 4) if isinstance(host, to.Bf16Array) else (host, None)
    other = Producer(array, code=kind, device=(CUDA, 1))
    with pytest.raises(to.InvalidArgument, match=f"{name} must be on cuda:0, got cuda:1"):
        call.start_one(**{name: other}, stream=stream)
    call.start()
    alone.synchronize()
    call.check()


def prepare(**change: Any) -> to.Session:
    options = {
        "placement": to.Placement.even(world=1, experts=2),
        "dtype": "bfloat16",
        "k": K,
        "n": N,
        "top_k": 1,
        "max_tokens": 8,
        "timeout_s": LIMIT_S,
        **change,
    }
    return to.CudaExecutor(to.DeviceWorld(0).transport(0)).prepare(**options)


def test_float32_is_refused():
    with pytest.raises(to.DTypeError, match="takes bfloat16 or float16, got float32"):
        prepare(dtype="float32")


def test_a_tile_that_no_kernel_has_is_refused_with_those_there_are():
    with pytest.raises(to.InvalidArgument, match=r"tiles of 48x80 on cuda:0.*there are: .*128x128"):
        prepare(tile=(48, 80))


def test_every_tile_that_a_device_names_can_be_prepared():
    tiles = to.cuda_devices()[0].tiles
    assert (128, 128) in tiles
    for tile in tiles:
        prepare(tile=tile).close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sms": 0}, "sms must be at least 1, got 0"),
        ({"comm_sms": -1}, "comm_sms must be at least 1, got -1"),
    ],
)
def test_counts_of_sms_are_checked(options: dict[str, int], words: str):
    with pytest.raises(to.InvalidArgument, match=words):
        to.CudaExecutor(to.DeviceWorld(0).transport(0), **options)


def test_another_way_to_transfer_rows_is_refused():
    with pytest.raises(to.InvalidArgument, match=r"transfer must be .*ship.*store.*got 'mail'"):
        to.CudaExecutor(to.DeviceWorld(0).transport(0), transfer="mail")


def test_more_sms_than_there_are_are_refused():
    sms = to.cuda_devices()[0].sms
    executor = to.CudaExecutor(to.DeviceWorld(0).transport(0), sms=sms + 1)
    with pytest.raises(to.InvalidArgument, match=f"sms = {sms + 1} but cuda:0 has {sms} SMs"):
        executor.prepare(
            placement=to.Placement.even(world=1, experts=1),
            dtype="bfloat16",
            k=K,
            n=N,
            top_k=1,
            max_tokens=1,
        )


def test_a_transport_of_the_cpu_is_refused():
    with pytest.raises(to.InvalidArgument, match="needs a transport with memory on a GPU"):
        to.CudaExecutor(to.World(1).transport(0))
