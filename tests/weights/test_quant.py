"""Meaning of the weight formats, against the gguf package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.blocks import BLOCK_TYPES, random_tensor

from llmx.errors import ModelError
from llmx.program.ops import ActKey
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dequantize, quant_key, quantize

DENSE = ("f32", "f16", "bf16")


def oracle(dtype: str) -> gguf.GGMLQuantizationType:
    return {kind.name.lower(): kind for kind in gguf.GGMLQuantizationType}[dtype.lower()]


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_any_bytes_mean_what_gguf_says(dtype: str) -> None:
    cols = 3 * BLOCK_BYTES[dtype][0]
    blocks = random_tensor(dtype, 6, cols, seed=1, spread=7).data  # scales of both signs, subnormal ones too
    got = dequantize(HostTensor(dtype, (2, 3, cols), blocks))
    assert got.dtype == np.float32 and got.shape == (2, 3, cols)
    np.testing.assert_array_equal(got.reshape(6, cols), gguf.quants.dequantize(blocks, oracle(dtype)))


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
    bits = {"f16": 16, "u6": 6, "u4": 4, "u2": 2, "u1": 1, "i8": 8}
    for dtype in BLOCK_TYPES:  # a block's parts take exactly the bytes that the table says
        elements, size = BLOCK_BYTES[dtype]
        parts = quant_key(dtype).tensors
        assert sum(bits[kind] * (elements if role in "qh" else elements // block) for role, kind, block in parts) == size * 8


@pytest.mark.parametrize("dtype", ("i32", "u8", "nope"))
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(ModelError, match=f"'{dtype}'.*q8_0"):
        quant_key(dtype)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="multiple of 32"):
        quantize(np.zeros((2, 40), np.float32), "q4_1")
    with pytest.raises(ModelError, match="q5_0"):
        quantize(np.zeros((2, 64), np.float32), "q5_0")
