"""Transforms of stored tensors, exact on quantised data: whole rows move, columns are cut at block borders.

- slice_rows(start, stop)  rows of the first axis
- permute_rows(heads)      rows of each head from rotary pairs (2i, 2i + 1) to halves (i, i + head_dim / 2): undoes the
  order in which GGUF files of the llama family keep q and k
- slice_cols(start, stop)  elements of the last axis, at block borders
- row(i)                   one item of the first axis of a stacked tensor
- transpose()              a dense matrix turned over
"""

from __future__ import annotations

import math

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import Transform, WeightRef
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import quant_key

__all__ = ["apply_transforms", "fit", "transformed_shape"]


def apply_transforms(tensor: HostTensor, transforms: tuple[Transform, ...]) -> HostTensor:
    """The tensor after all transforms, in order; rows stay a view of the file where they keep their order; `data` is contiguous.

    Raises ModelError where a transform does not fit.
    """
    for transform in transforms:
        tensor = _apply(tensor, transform)
    return tensor


def fit(tensor: HostTensor, ref: WeightRef, path: str) -> HostTensor:
    """The tensor as `ref` wants it. Raises ModelError naming file and tensor when its storage or its shape is another."""
    try:
        changed = apply_transforms(tensor, ref.transforms)
    except ModelError as error:
        raise ModelError(f"tensor {ref.name!r}: {error}", path=path) from error
    if changed.shape != ref.shape:
        raise ModelError(f"tensor {ref.name!r} has shape {list(changed.shape)}, but the model's configuration asks for {list(ref.shape)}", path=path)
    if quant_key(tensor.dtype) != ref.quant:
        raise ModelError(f"tensor {ref.name!r} is stored as {tensor.dtype}, but {ref.quant} was asked for", path=path)
    return changed


def transformed_shape(dtype: str, shape: tuple[int, ...], transforms: tuple[Transform, ...]) -> tuple[int, ...]:
    """Shape after all transforms, without data. Raises ModelError where one does not fit."""
    for transform in transforms:
        shape = _new_shape(dtype, shape, transform)
    return shape


def _new_shape(dtype: str, shape: tuple[int, ...], transform: Transform) -> tuple[int, ...]:
    name, args, block = transform.name, transform.args, BLOCK_BYTES[dtype][0]
    arity = {"slice_rows": 2, "slice_cols": 2, "permute_rows": 1, "row": 1, "transpose": 0}.get(name)
    if arity is None or len(args) != arity:
        raise ModelError(f"unknown transform {name!r} with arguments {args}")
    first, last = shape[0], shape[-1]
    fits = {
        "slice_rows": lambda: 0 <= args[0] < args[1] <= first and (len(shape) > 1 or not (args[0] % block or args[1] % block)),
        "slice_cols": lambda: 0 <= args[0] < args[1] <= last and not (args[0] % block or args[1] % block),
        "permute_rows": lambda: args[0] > 0 and first % (2 * args[0]) == 0 and (len(shape) > 1 or block == 1),
        "row": lambda: 0 <= args[0] < first and len(shape) > 1,
        "transpose": lambda: len(shape) == 2 and block == 1,
    }[name]()
    if not fits:
        raise ModelError(f"transform {name}{args} does not fit a tensor of shape {list(shape)} and type {dtype} ({block} elements per block)")
    if name == "slice_rows":
        return (args[1] - args[0], *shape[1:])
    if name == "slice_cols":
        return (*shape[:-1], args[1] - args[0])
    return shape[1:] if name == "row" else shape[::-1] if name == "transpose" else shape


def _apply(tensor: HostTensor, transform: Transform) -> HostTensor:
    shape = _new_shape(tensor.dtype, tensor.shape, transform)
    name, args, data = transform.name, transform.args, tensor.data
    elements, size = BLOCK_BYTES[tensor.dtype]
    if len(tensor.shape) == 1 and name == "slice_rows":  # one row of data: its elements are the rows
        name = "slice_cols"
    if name == "slice_cols":
        data = np.ascontiguousarray(data[:, args[0] // elements * size : args[1] // elements * size])
    elif name == "transpose":
        data = data.reshape(*tensor.shape, size).swapaxes(0, 1).reshape(shape[0], -1)
    elif name == "permute_rows":
        data = _pairs_to_halves(data.reshape(tensor.shape[0], -1), args[0]).reshape(data.shape)
    else:  # slice_rows, row: items of the first axis are runs of rows
        per_item = math.prod(tensor.shape[1:-1])
        start, stop = args if name == "slice_rows" else (args[0], args[0] + 1)
        data = data[start * per_item : stop * per_item]
    return HostTensor(tensor.dtype, shape, data)


def _pairs_to_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
