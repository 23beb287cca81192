"""Meaning of the weight formats, against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llmx.errors import ModelError
from llmx.program.ops import ActKey
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dequantize, quant_key, quantize

DENSE = ("f32", "f16", "bf16")
BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def oracle(dtype: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[dtype.upper()]


@pytest.mark.parametrize("dtype", BLOCKS)
def test_any_bytes_mean_what_gguf_says(dtype: str) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (6, 3 * BLOCK_BYTES[dtype][1]), dtype=np.uint8)
    for column in range(0, blocks.shape[1], BLOCK_BYTES[dtype][1]):  # finite scales of both signs, subnormal ones too
        for part in range(2 if dtype.endswith("_1") else 1):
            scale = rng.normal(0, 1, 6).astype("<f2") * np.float16(10.0 ** -rng.integers(0, 7))
            blocks[:, column + 2 * part : column + 2 * part + 2] = scale.astype("<f2").view(np.uint8).reshape(6, 2)
    got = dequantize(HostTensor(dtype, (2, 3, 96), blocks))
    assert got.dtype == np.float32 and got.shape == (2, 3, 96)
    np.testing.assert_array_equal(got.reshape(6, 96), gguf.quants.dequantize(blocks, oracle(dtype)))


@pytest.mark.parametrize("dtype", DENSE)
@settings(max_examples=40, deadline=None)
@given(values=hnp.arrays(np.float32, (3, 8), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_dense_round_trip_equals_gguf(dtype: str, values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        tensor = quantize(values, dtype)
        wanted = gguf.quants.dequantize(gguf.quants.quantize(values, oracle(dtype)), oracle(dtype))
    np.testing.assert_array_equal(dequantize(tensor), wanted)


@pytest.mark.parametrize("dtype", ("q4_0", "q4_1", "q8_0"))
def test_quantize_writes_the_bytes_that_gguf_writes(dtype: str) -> None:
    rng = np.random.default_rng(2)
    values = rng.standard_normal((40, 128)).astype(np.float32) * np.float32(10.0) ** rng.integers(-4, 3, (40, 1)).astype(np.float32)
    values[0], values[1], values[2, :64] = 0, 3.25, 0
    tensor = quantize(values.reshape(8, 5, 128), dtype)
    assert tensor.shape == (8, 5, 128) and tensor.rows == 40
    np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(values, oracle(dtype)))


def test_keys_name_tensors_and_input_quantisation() -> None:
    key = quant_key("q4_1")
    assert (key.scheme, key.tensors, key.act) == ("q4_1", (("d", "f16", 32), ("m", "f16", 32), ("q", "u4", 32)), ActKey("i8", 32))
    assert str(quant_key("bf16")) == "bf16" and quant_key("bf16").act is None
    bits = {"f16": 16, "u4": 4, "u1": 1, "i8": 8}
    for dtype in BLOCKS:  # a block's parts take exactly the bytes that the table says
        parts = quant_key(dtype).tensors
        size = sum(bits[kind] * (1 if role in "dm" else 32) for role, kind, _ in parts)
        assert size == BLOCK_BYTES[dtype][1] * 8


@pytest.mark.parametrize("dtype", ("i32", "u8", "nope"))
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(ModelError, match=f"'{dtype}'.*q8_0"):
        quant_key(dtype)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="multiple of 32"):
        quantize(np.zeros((2, 40), np.float32), "q4_1")
    with pytest.raises(ModelError, match="q5_0"):
        quantize(np.zeros((2, 64), np.float32), "q5_0")
