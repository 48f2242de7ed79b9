"""Kind 12: tensors of any framework, under every description that a producer may give."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from dlpack_producer import BFLOAT, CUDA, Producer, capsule_name
from support import executors

import tileoverlap as to

READ_ONLY, IS_COPIED = 1, 2
T, K, N = 4, 256, 16


@pytest.fixture
def layer():
    """One rank, one expert: y = down x."""
    with executors(1, faults=to.CpuFaults(max_delay_us=2000))[0].prepare_layer(
        placement=to.Placement.even(world=1, experts=1),
        dtype="float32",
        expert="single",
        hidden=N,
        inner=K,
        top_k=1,
        max_tokens=T,
        tile=(8, 8),
        timeout_s=60,
    ) as made:
        yield made


X = np.random.default_rng(12).standard_normal((T, K), np.float32)
DOWN = np.random.default_rng(13).standard_normal((1, N, K), np.float32)
IDS = np.zeros((T, 1), np.int32)
WEIGHTS = np.ones((T, 1), np.float32)
WANTED = X.astype(np.float64) @ DOWN[0].T.astype(np.float64)


def forward(layer: to.MoeLayer, **change) -> np.ndarray:
    tensors = {
        "x": X,
        "topk_ids": IDS,
        "topk_weights": WEIGHTS,
        "down": DOWN,
        "out": np.full((T, N), np.nan, np.float32),
        **change,
    }
    layer.forward(**tensors)
    out = tensors["out"]
    del tensors, change
    gc.collect()
    layer.synchronize()
    return out


def assert_right(out: np.ndarray) -> None:
    assert to.reference.compare([out], [WANTED], "float32").ok


@pytest.mark.parametrize("old", [False, True])
def test_both_kinds_of_capsules_are_taken_and_given_back_once(layer, old: bool):
    x = Producer(X.copy(), old=old)
    assert_right(forward(layer, x=x))
    assert x.deleted == 1
    assert capsule_name(x.capsules[0]).startswith("used_dltensor")
    assert x.requests[0] == {"max_version": (1, 3)}  # and no stream on a CPU


@pytest.mark.case("D12.1")
def test_null_strides_are_row_major(layer):
    """D12.1"""
    assert_right(forward(layer, x=Producer(X.copy(), null_strides=True)))


@pytest.mark.case("D12.2")
def test_byte_offsets_are_honoured(layer):
    """D12.2: 512 into a larger buffer."""
    buffer = np.concatenate([np.full(128, np.nan, np.float32), X.ravel()])
    x = Producer(buffer, shape=(T, K), strides=(K, 1), byte_offset=512)
    assert_right(forward(layer, x=x))


@pytest.mark.case("D12.2")
def test_a_misaligned_byte_offset_is_refused_with_offset_and_size(layer):
    """D12.2: 3."""
    buffer = np.concatenate([X.ravel(), np.zeros(1, np.float32)])
    x = Producer(buffer, shape=(T, K), strides=(K, 1), byte_offset=3)
    with pytest.raises(to.InvalidArgument, match=r"x must start.*element size of 4.*byte_offset 3"):
        forward(layer, x=x)
    assert x.deleted == 1
    assert_right(forward(layer))


@pytest.mark.case("D12.3")
@pytest.mark.parametrize("old", [False, True])
def test_memory_is_given_back_only_when_the_work_is_done(layer, old: bool):
    """D12.3: the deleter fills the memory with NaN; nobody else holds the tensors."""
    counts: list[Producer] = []

    def lend(array: np.ndarray) -> Producer:
        counts.append(Producer(array.copy(), old=old, scribble=True))
        return counts[-1]

    out = np.full((T, N), np.nan, np.float32)
    layer.forward(lend(X), IDS, lend(WEIGHTS), down=lend(DOWN), out=out)
    gc.collect()
    assert [producer.deleted for producer in counts] == [0, 0, 0]
    layer.synchronize()
    assert_right(out)
    assert [producer.deleted for producer in counts] == [1, 1, 1]


@pytest.mark.case("D12.3")
def test_closing_gives_everything_back():
    """D12.3: also where nobody synchronizes."""
    x = Producer(X.copy(), scribble=True)
    layer = executors(2)[0].prepare_layer(
        placement=to.Placement.even(world=2, experts=2),
        dtype="float32",
        expert="single",
        hidden=N,
        inner=K,
        top_k=1,
        max_tokens=T,
        timeout_s=60,
    )
    layer.forward(x, IDS, WEIGHTS, down=DOWN, out=np.zeros((T, N), np.float32))
    assert x.deleted == 0
    del layer
    gc.collect()
    assert x.deleted == 1


@pytest.mark.case("D12.7")
@pytest.mark.parametrize(
    ("array", "change", "name"),
    [
        (X.astype(np.float16), {}, "float16"),
        (X.astype(np.float64), {}, "float64"),
        (X.astype(np.int8), {}, "int8"),
        (X.astype(np.complex64), {}, "complex64"),
        (X > 0, {}, "bool"),
        (X, {"lanes": 4}, "float32 with 4 lanes"),
        (X, {"code": BFLOAT, "bits": 16}, "bfloat16"),
        (X, {"code": 99}, "code99"),
    ],
)
def test_other_types_are_refused_by_name_with_what_is_supported(layer, array, change, name):
    """D12.7"""
    for x in (Producer(array, **change), *([array] if not change else [])):
        with pytest.raises(TypeError) as error:
            forward(layer, x=x)
        assert str(error.value).startswith("x must be float32, got ")
        assert name in str(error.value)
    assert_right(forward(layer))


@pytest.mark.case("D12.8")
def test_views_are_honoured_or_refused(layer):
    """D12.8: a slice of wider rows works; a transposed tensor and stride 0 are refused."""
    wide = np.full((T, 512), np.nan, np.float32)
    wide[:, :K] = X
    assert_right(forward(layer, x=wide[:, :K]))
    for view in (np.ascontiguousarray(X.T).T, np.broadcast_to(X[:1], X.shape), X[:, ::-1], X[::-1]):
        with pytest.raises(to.InvalidArgument, match="x must have contiguous rows"):
            forward(layer, x=view)
    overlapping = np.lib.stride_tricks.as_strided(X, (T, K), (4, 4))
    with pytest.raises(to.InvalidArgument, match="x must have contiguous rows"):
        forward(layer, x=overlapping)


@pytest.mark.case("D12.9")
@pytest.mark.parametrize("dlpack", [False, True])
def test_read_only_inputs_are_taken_and_outputs_refused(layer, dlpack: bool):
    """D12.9"""

    def lock(array: np.ndarray):
        array = array.copy()
        array.setflags(write=False)
        return Producer(array, flags=READ_ONLY) if dlpack else array

    assert_right(forward(layer, x=lock(X), topk_ids=lock(IDS), down=lock(DOWN)))
    out = lock(np.full((T, N), 7, np.float32))
    with pytest.raises(to.InvalidArgument, match=r"out is written to.*read-only"):
        forward(layer, out=out)
    assert_right(forward(layer))


def test_an_output_that_is_a_copy_is_refused(layer):
    out = Producer(np.zeros((T, N), np.float32), flags=IS_COPIED)
    with pytest.raises(to.InvalidArgument, match=r"out is written to.*copy"):
        forward(layer, out=out)
    assert_right(forward(layer, x=Producer(X.copy(), flags=IS_COPIED)))


def test_an_output_may_be_any_dlpack_tensor(layer):
    memory = np.full((T, N), np.nan, np.float32)
    forward(layer, out=Producer(memory))
    assert_right(memory)


@pytest.mark.case("D1.4")
def test_null_data_is_legal_only_without_elements(layer):
    """D1.4"""
    empty = Producer(np.zeros((0, K), np.float32), null_data=True)
    out = forward(
        layer,
        x=empty,
        topk_ids=IDS[:0],
        topk_weights=WEIGHTS[:0],
        out=np.zeros((0, N), np.float32),
    )
    assert out.shape == (0, N)
    with pytest.raises(to.InvalidArgument, match=r"x \[4, 256\] has null data"):
        forward(layer, x=Producer(X.copy(), null_data=True))


@pytest.mark.case("D1.4")
def test_the_device_comes_from_the_tensor(layer):
    """D1.4: nobody asks a driver about a pointer; this executor wants the CPU."""
    x = Producer(X.copy(), device=(CUDA, 1))
    with pytest.raises(to.InvalidArgument, match="x must be on the cpu, got cuda:1"):
        forward(layer, x=x)
    assert x.requests == [{"stream": -1, "max_version": (1, 3)}]
    assert x.deleted == 1


def test_another_major_version_is_given_back_unread(layer):
    x = Producer(X.copy(), version=(2, 0))
    with pytest.raises(to.InvalidArgument, match=r"x came as DLPack 2\.0, needed is version 1"):
        forward(layer, x=x)
    assert x.deleted == 1


def test_what_the_producer_says_is_passed_on(layer):
    class Stubborn:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **_):
            raise BufferError("this tensor requires grad\nand more")

    with pytest.raises(to.InvalidArgument) as error:
        forward(layer, x=Stubborn())
    assert "x cannot be shared by DLPack" in str(error.value)
    assert "requires grad" in str(error.value)
    assert "\n" not in str(error.value)
    assert_right(forward(layer))


def test_no_capsule_is_refused(layer):
    class Liar:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **_):
            return 42

    with pytest.raises(to.InvalidArgument, match="x gave no DLPack capsule"):
        forward(layer, x=Liar())


def test_a_used_capsule_is_refused(layer):
    class Again:
        capsule = Producer(X.copy()).__dlpack__()

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **_):
            return self.capsule

    again = Again()
    assert_right(forward(layer, x=again))
    with pytest.raises(to.InvalidArgument, match="x gave no DLPack capsule"):
        forward(layer, x=again)


@pytest.mark.parametrize("value", [[[1.0]], 3.5, None, "x", np.float32(1), np.ndarray])
def test_what_is_no_tensor_is_refused_and_peers_are_not_left_waiting(value):
    """A list, a number, nothing: the call is still one step of all ranks."""
    layers = [
        executor.prepare_layer(
            placement=to.Placement.even(world=2, experts=2),
            dtype="float32",
            expert="single",
            hidden=N,
            inner=K,
            top_k=1,
            max_tokens=T,
            timeout_s=60,
        )
        for executor in executors(2)
    ]
    with pytest.raises(TypeError, match=r"x must be a tensor|x has the numpy dtype") as error:
        layers[0].forward(value, IDS, WEIGHTS, down=DOWN, out=np.zeros((T, N), np.float32))
    assert isinstance(error.value, to.Error)
    layers[1].forward(X, IDS, WEIGHTS, down=DOWN, out=np.zeros((T, N), np.float32))
    with pytest.raises(to.CallRefused, match="rank 0 refused"):
        layers[1].synchronize()


def test_misaligned_and_oddly_strided_arrays_are_refused(layer):
    raw = np.zeros(T * K * 4 + 4, np.uint8)
    misaligned = raw[1 : 1 + T * K * 4].view(np.float32).reshape(T, K)
    if misaligned.ctypes.data % 4:
        with pytest.raises(to.InvalidArgument, match="x must start at a multiple"):
            forward(layer, x=misaligned)
    records = np.zeros((T, K), [("value", np.float32), ("tag", np.uint8)])
    with pytest.raises(to.InvalidArgument, match=r"x has a stride of 5 bytes.*4 bytes"):
        forward(layer, x=records["value"])


def test_ml_dtypes_bfloat16_arrays_are_taken_as_they_are():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with executors(1)[0].prepare_layer(
        placement=to.Placement.even(world=1, experts=1),
        dtype="bfloat16",
        expert="single",
        hidden=N,
        inner=K,
        top_k=1,
        max_tokens=T,
        timeout_s=60,
    ) as layer:
        out = np.zeros((T, N), ml_dtypes.bfloat16)
        layer.forward(
            X.astype(ml_dtypes.bfloat16),
            IDS,
            WEIGHTS,
            down=DOWN.astype(ml_dtypes.bfloat16),
            out=out,
        )
        layer.synchronize()
    x, down = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (X, DOWN[0]))
    assert to.reference.compare([out.astype(np.float32)], [x @ down.T], "bfloat16").ok


@pytest.mark.case("D12.3")
def test_torch_tensors_in_and_out():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(1)
    with executors(1, faults=to.CpuFaults(max_delay_us=2000))[0].prepare_layer(
        placement=to.Placement.even(world=1, experts=2),
        dtype="bfloat16",
        expert="gelu",
        hidden=32,
        inner=16,
        top_k=2,
        max_tokens=8,
        timeout_s=60,
    ) as layer:
        x = torch.randn(8, 32, generator=generator).to(torch.bfloat16)
        ids = torch.randint(0, 2, (8, 2), generator=generator)
        weights = torch.rand(8, 2, generator=generator)
        up = torch.randn(2, 16, 32, generator=generator).to(torch.bfloat16)
        down = torch.randn(2, 32, 16, generator=generator).to(torch.bfloat16)
        out = torch.full((8, 32), float("nan"), dtype=torch.bfloat16)
        layer.forward(
            x.clone(), ids.clone(), weights.clone(), up=up.clone(), down=down.clone(), out=out
        )
        layer.synchronize()
        wanted = to.reference.layer(
            [x.float().numpy()],
            [ids.numpy()],
            [weights.numpy()],
            up=up.float().numpy(),
            down=down.float().numpy(),
            expert="gelu",
        )
        assert to.reference.compare([out.float().numpy()], wanted, "bfloat16").ok
        with pytest.raises(to.InvalidArgument, match=r"down cannot be shared.*grad"):
            layer.forward(x, ids, weights, up=up, down=down.requires_grad_(), out=out)
