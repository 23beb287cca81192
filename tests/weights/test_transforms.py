"""Transforms move quantised data exactly: dequantising after equals the numpy operation on dequantised data."""

from __future__ import annotations

import numpy as np
import pytest

from llmx.errors import ModelError
from llmx.program.ops import Transform, WeightRef
from llmx.weights.quant import dequantize, quant_key, quantize
from llmx.weights.transforms import apply_transforms, fit, transformed_shape

DTYPES = ("f32", "bf16", "q4_1", "q8_0")


def random(shape: tuple[int, ...], dtype: str):
    return quantize(np.random.default_rng(3).standard_normal(shape).astype(np.float32), dtype)


def to_pairs(weights: np.ndarray, heads: int) -> np.ndarray:
    """How llama.cpp's converter writes q and k of a Hugging Face checkpoint."""
    return weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_permute_rows_undoes_the_order_of_gguf(dtype: str) -> None:
    values = np.random.default_rng(4).standard_normal((48, 64)).astype(np.float32)
    stored = quantize(to_pairs(values, 3), dtype)
    got = apply_transforms(stored, (Transform("permute_rows", (3,)),))
    np.testing.assert_array_equal(got.data, quantize(values, dtype).data)


def test_permute_rows_of_a_bias() -> None:
    bias = np.arange(24, dtype=np.float32)
    got = apply_transforms(quantize(to_pairs(bias, 3), "f32"), (Transform("permute_rows", (3,)),))
    assert got.shape == (24,) and got.rows == 1
    np.testing.assert_array_equal(dequantize(got), bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("transforms", "same"),
    [
        ((("slice_rows", (3, 7)),), lambda x: x[3:7]),
        ((("slice_cols", (32, 96)),), lambda x: x[..., 32:96]),
        ((("row", (2,)),), lambda x: x[2]),
        ((("row", (4,)), ("slice_rows", (1, 3)), ("slice_cols", (64, 96))), lambda x: x[4][1:3][:, 64:96]),
    ],
)
def test_slices(dtype: str, transforms, same) -> None:
    tensor = random((8, 5, 96), dtype)
    steps = tuple(Transform(*step) for step in transforms)
    got = apply_transforms(tensor, steps)
    np.testing.assert_array_equal(dequantize(got), same(dequantize(tensor)))
    assert got.shape == transformed_shape(dtype, tensor.shape, steps) and got.data.flags.c_contiguous


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_transpose_of_a_dense_matrix(dtype: str) -> None:
    tensor = random((6, 10), dtype)
    np.testing.assert_array_equal(dequantize(apply_transforms(tensor, (Transform("transpose"),))), dequantize(tensor).T)


def test_whole_row_slices_do_not_copy() -> None:
    tensor = random((16, 64), "q4_1")
    assert np.shares_memory(apply_transforms(tensor, (Transform("slice_rows", (4, 8)),)).data, tensor.data)


@pytest.mark.parametrize(
    ("name", "args", "shape", "dtype"),
    [
        ("slice_rows", (0, 9), (8, 64), "q4_1"),
        ("slice_rows", (5, 5), (8, 64), "q4_1"),
        ("slice_cols", (16, 64), (8, 64), "q4_1"),  # inside a block
        ("permute_rows", (3,), (8, 64), "q4_1"),
        ("permute_rows", (0,), (8, 64), "f32"),
        ("transpose", (), (8, 64), "q4_1"),
        ("row", (8,), (8, 64), "f32"),
        ("shuffle", (1,), (8, 64), "f32"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, args: tuple[int, ...], shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ModelError, match=name):
        apply_transforms(random(shape, dtype), (Transform(name, args),))


def test_fit_names_file_tensor_and_both_shapes() -> None:
    tensor = random((8, 64), "q4_1")
    with pytest.raises(ModelError, match=r"f\.gguf: tensor 'w' has shape \[8, 64\].*\[8, 32\]"):
        fit(tensor, WeightRef("w", (8, 32), quant_key("q4_1")), "f.gguf")
    with pytest.raises(ModelError, match="stored as q4_1, but bf16"):
        fit(tensor, WeightRef("w", (8, 64)), "f.gguf")
