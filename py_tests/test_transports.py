"""Stage transport: worlds on devices, and memory that somebody else has mapped."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import LIMIT_S, on_each_rank, random_ids, random_weights, same_bits

import tileoverlap as to

REGION = 1 << 20


class Buffer:
    """Zeroed memory for a region a rank, at multiples of 256. Can be watched by a weakref."""

    def __init__(self, world: int, nbytes: int = REGION) -> None:
        self.bytes = np.zeros(world * nbytes + 256, np.uint8)
        first = -self.bytes.ctypes.data % 256
        self.bases = [self.bytes.ctypes.data + first + rank * nbytes for rank in range(world)]


class Gather:
    """An all-gather between threads, as bytes -> list[bytes]."""

    def __init__(self, world: int) -> None:
        self.messages: list[bytes] = [b""] * world
        self.barrier = threading.Barrier(world, timeout=LIMIT_S)

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def all_gather(message: bytes) -> list[bytes]:
            self.messages[rank] = message
            self.barrier.wait()
            result = list(self.messages)
            self.barrier.wait()
            return result

        return all_gather


def mapped(world: int, nbytes: int = REGION, *, gather: bool = True) -> list[to.MappedTransport]:
    buffer, exchange = Buffer(world, nbytes), Gather(world)
    return [
        to.MappedTransport(
            rank,
            world,
            buffer.bases,
            nbytes,
            all_gather=exchange.of(rank) if gather else None,
            owner=buffer,
        )
        for rank in range(world)
    ]


def prepare(transport: to.Transport, *, max_tokens: int = 8, top_k: int = 2) -> to.MoeLayer:
    return to.CpuExecutor(transport).prepare_layer(
        placement=to.Placement.even(world=transport.world, experts=4),
        dtype="float32",
        expert="single",
        hidden=16,
        inner=8,
        top_k=top_k,
        max_tokens=max_tokens,
        tile=(8, 8),
        timeout_s=LIMIT_S,
    )


def run_layers(transports: list[Any], *, calls: int = 3) -> list[Any]:
    """The same random layer on any transports, a thread a rank; the outputs of the last call."""
    world = len(transports)
    rng = np.random.default_rng(5)
    ids = [random_ids(rng, 6, 2, 4) for _ in range(world)]
    weights = [random_weights(rng, part) for part in ids]
    x = [rng.standard_normal((6, 8), np.float32) for _ in range(world)]
    down = rng.standard_normal((4, 16, 8), np.float32)

    def run(rank: int) -> Any:
        layer = prepare(transports[rank])
        out = np.full((6, 16), np.nan, np.float32)
        experts = to.Placement.even(world=world, experts=4).experts_of(rank)
        mine = down[experts.start : experts.stop]
        for _ in range(calls):
            layer.forward(x[rank], ids[rank], weights[rank], down=mine, out=out)
            layer.synchronize()
        return out

    return on_each_rank(world, run)


def test_worlds_say_where_their_memory_lies():
    world = to.World(3)
    assert [transport.device for transport in world.transports] == ["cpu"] * 3
    assert [transport.ranks_on_device for transport in world.transports] == [3] * 3


def test_a_mapped_transport_says_what_it_was_made_from():
    transport = to.MappedTransport(
        1, 2, Buffer(2).bases, REGION, device="cuda:3", ranks_on_device=2
    )
    assert (transport.rank, transport.world) == (1, 2)
    assert (transport.device, transport.ranks_on_device) == ("cuda:3", 2)
    assert repr(transport) == f"MappedTransport(rank=1 of 2, cuda:3, {REGION} bytes)"


def test_a_mapped_world_gives_the_bits_of_the_in_process_world():
    assert same_bits(run_layers(mapped(2)), run_layers(to.World(2).transports))


def test_counts_are_gathered_over_all_gather():
    placement = to.Placement.even(world=2, experts=4)
    transports = mapped(2)
    ids = [np.array([[0, 3]]), np.array([[2, 2]])]
    counts = on_each_rank(2, lambda rank: to.gather_counts(transports[rank], placement, ids[rank]))
    assert [part.array.tolist() for part in counts] == [[[1, 0, 0, 1], [0, 0, 2, 0]]] * 2


def test_ranks_that_prepare_differently_are_told_so_and_may_try_again():
    transports = mapped(2)
    errors = on_each_rank(2, lambda rank: prepare(transports[rank], top_k=1 + rank))
    for error in errors:
        assert type(error) is to.InvalidArgument
        assert all(word in str(error) for word in ("rank 0", "rank 1", "top_k=1", "top_k=2")), str(
            error
        )
    layers = on_each_rank(2, lambda rank: prepare(transports[rank]))
    assert all(isinstance(layer, to.MoeLayer) for layer in layers), layers


def test_no_room_is_said_with_numbers():
    transport = to.MappedTransport(0, 1, Buffer(1).bases, 512)
    with pytest.raises(to.Error, match=r"rank 0 .* bytes .* 512 bytes are left .* of 512"):
        prepare(transport)


def test_memory_is_used_again_once_all_have_let_go():
    transports = mapped(2, 64 << 10)
    wanted = run_layers(to.World(2).transports)
    for _ in range(20):
        assert same_bits(run_layers(transports), wanted)


def test_without_all_gather_what_needs_host_messages_says_so():
    transport = mapped(1, gather=False)[0]
    placement = to.Placement.even(world=1, experts=4)
    with pytest.raises(to.Error, match="no host exchange: it was made without all_gather"):
        to.gather_counts(transport, placement, np.zeros((1, 1), np.int32))


def test_what_all_gather_raises_comes_through():
    def all_gather(message: bytes) -> list[bytes]:
        raise KeyError("connection lost")

    transport = to.MappedTransport(0, 1, Buffer(1).bases, REGION, all_gather=all_gather)
    with pytest.raises(KeyError, match="connection lost"):
        prepare(transport)
    with pytest.raises(to.Error, match=r"no host exchange any more.*connection lost"):
        prepare(transport)


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (lambda mine: [mine, mine], to.Error, "must return 1 messages"),
        (lambda mine: [b"x"], to.Error, "by rank"),
        (lambda mine: [5], TypeError, "int"),
        (lambda mine: None, TypeError, "NoneType"),
    ],
)
def test_an_all_gather_that_returns_something_else_is_refused(returned, error, words):
    transport = to.MappedTransport(0, 1, Buffer(1).bases, REGION, all_gather=returned)
    with pytest.raises(error, match=words):
        prepare(transport)


def test_messages_may_be_anything_that_holds_bytes():
    transport = to.MappedTransport(
        0, 1, Buffer(1).bases, REGION, all_gather=lambda mine: [bytearray(mine)]
    )
    prepare(transport)


def test_the_owner_and_the_function_live_as_long_as_what_was_made():
    buffer = Buffer(1)
    watched = weakref.ref(buffer)
    gather = Gather(1)
    gather_watched = weakref.ref(gather)
    layer = prepare(
        to.MappedTransport(0, 1, buffer.bases, REGION, all_gather=gather.of(0), owner=buffer)
    )
    del buffer, gather
    gc.collect()
    assert watched() is not None
    assert gather_watched() is not None
    layer.close()
    del layer
    gc.collect()
    assert watched() is None
    assert gather_watched() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": 2}, ["rank", "0..1", "2"]),
        ({"rank": -1}, ["rank", "-1"]),
        ({"world": 0}, ["world", "0"]),
        ({"world": 3}, ["bases", "3", "2"]),
        ({"bases": [0, 256]}, ["rank 0", "null"]),
        ({"bases": [256, 1 << 30 | 8]}, ["rank 1", "256", "8 bytes"]),
        ({"bases": [1 << 20, 1 << 20]}, ["ranks 0 and 1", "overlap"]),
        ({"bases": [1 << 20, 1 << 64]}, ["bases[1]", str(1 << 64)]),
        ({"bases": [1 << 20, "x"]}, ["bases[1]", "'x'"]),
        ({"nbytes": 0}, ["nbytes", "0"]),
        ({"ranks_on_device": 3}, ["ranks_on_device", "1..2", "3"]),
        ({"device": "cuda"}, ["device", "'cuda'"]),
        ({"device": "tpu:0"}, ["device", "'tpu:0'"]),
    ],
)
def test_regions_that_cannot_be_are_refused(change: dict[str, Any], words: list[str]):
    arguments: dict[str, Any] = {"rank": 0, "world": 2, "bases": Buffer(2).bases, "nbytes": REGION}
    with pytest.raises(to.InvalidArgument) as error:
        to.MappedTransport(**{**arguments, **change})
    assert all(word in str(error.value) for word in words), str(error.value)


def device_world_or_why(*args: Any) -> Any:
    """A DeviceWorld, or the message of why there is none."""
    try:
        return to.DeviceWorld(*args)
    except to.Error as error:
        return str(error)


def test_without_a_device_a_device_world_says_why():
    world = device_world_or_why([0])
    if isinstance(world, to.DeviceWorld):
        pytest.skip("there is a CUDA device")
    assert "built without CUDA" in world or "no CUDA device can be used" in world


def test_ranks_may_share_a_device():
    world = device_world_or_why(0, 4)
    if isinstance(world, str):
        pytest.skip(world)
    assert len(world) == 4
    assert [transport.device for transport in world.transports] == ["cuda:0"] * 4
    assert [transport.ranks_on_device for transport in world.transports] == [4] * 4
    assert repr(world) == "DeviceWorld([0, 0, 0, 0])"
    assert world.transport(3) is world.transport(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to.DeviceWorld([0, -1]), ["devices[1]", "-1"]),
        (lambda: to.DeviceWorld(["cuda"]), ["devices[0]", "'cuda'"]),
        (lambda: to.DeviceWorld("cuda:0"), ["devices", "'cuda:0'"]),
        (lambda: to.DeviceWorld([0, 0], ranks=2), ["ranks", "2"]),
        (lambda: to.DeviceWorld(0, ranks=0), ["ranks", "at least 1", "0"]),
    ],
)
def test_device_lists_that_cannot_be_are_refused(make, words):
    with pytest.raises(to.InvalidArgument) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)
