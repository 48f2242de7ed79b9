"""bfloat16 for numpy."""

from __future__ import annotations

import numpy as np
import pytest
from dlpack_producer import capsule_name

import tileoverlap as to


def from_bits(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint32).view(np.float32)


def test_rounding_is_to_nearest_with_ties_to_even():
    values = from_bits(
        0x3F800000,
        0x3F807FFF,
        0x3F808000,
        0x3F808001,
        0x3F818000,
        0x80000000,
        0x7F7FFFFF,
        0x7F800000,
        0xFF800000,
        0x00000001,
    )
    assert to.to_bfloat16(values).bits.tolist() == [
        0x3F80,
        0x3F80,
        0x3F80,
        0x3F81,
        0x3F82,
        0x8000,
        0x7F80,
        0x7F80,
        0xFF80,
        0x0000,
    ]


def test_nan_stays_nan():
    rounded = to.to_bfloat16(from_bits(0x7F800001, 0xFFFFFFFF, 0x7FC00000))
    assert np.isnan(rounded.float32()).all()


def test_every_bfloat16_survives_the_way_there_and_back():
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = to.Bf16Array(bits).float32()
    back = to.to_bfloat16(values).bits
    nan = np.isnan(values)
    assert np.array_equal(back[~nan], bits[~nan])
    assert np.isnan(to.Bf16Array(back).float32()[nan]).all()


def test_rounding_equals_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    wanted = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(to.to_bfloat16(values).bits, wanted)


def test_shapes_and_views_are_kept():
    array = to.to_bfloat16(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    assert array.shape == (2, 3, 4)
    assert len(array) == 2
    assert array[1].shape == (3, 4)
    assert array[1, 2, 3].float32() == 23
    array[0].bits[:] = 0
    assert (array.float32()[0] == 0).all()
    assert to.Bf16Array.empty((5, 0)).shape == (5, 0)
    assert repr(array) == "Bf16Array(shape=(2, 3, 4))"


def test_dlpack_export():
    array = to.to_bfloat16(np.ones((2, 3), np.float32))
    assert array.__dlpack_device__() == (1, 0)
    assert capsule_name(array.__dlpack__()) == "dltensor"
    assert capsule_name(array.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"
    with pytest.raises(BufferError, match="stream"):
        array.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="copy"):
        array.__dlpack__(copy=True)
    array.bits.setflags(write=False)
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    assert capsule_name(array.__dlpack__(max_version=(1, 0))) == "dltensor_versioned"


def test_torch_reads_a_bf16_array():
    torch = pytest.importorskip("torch")
    array = to.to_bfloat16(np.arange(6, dtype=np.float32).reshape(2, 3))
    tensor = torch.from_dlpack(array)
    assert tensor.dtype == torch.bfloat16
    assert tensor.float().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_wrong_sources_are_refused():
    with pytest.raises(to.DTypeError, match=r"uint16.*float32"):
        to.Bf16Array(np.zeros(3, np.float32))
    with pytest.raises(to.DTypeError, match=r"uint16.*list"):
        to.Bf16Array([1, 2])
    with pytest.raises(to.InvalidArgument, match="float64"):
        to.to_bfloat16(np.zeros(3))
    with pytest.raises(to.DTypeError, match="<U1"):
        to.to_bfloat16(["a"])
    assert to.to_bfloat16([1.0, 2.5]).float32().tolist() == [1.0, 2.5]
