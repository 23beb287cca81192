"""What a stored weight means: its QuantKey, its float32 values, and the way back for schemes that tests and converters write."""

from __future__ import annotations

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import QuantKey
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dense, gguf_blocks, gguf_k_blocks, groups

__all__ = ["dequantize", "quant_key", "quantize"]

_WRITTEN = (*dense.DENSE, "q4_0", "q4_1", "q8_0", *groups.GROUP_KEYS)


def quant_key(dtype: str) -> QuantKey:
    """How a HostTensor of this dtype is stored. Raises ModelError for a dtype that is no weight format."""
    if dtype in dense.DENSE:
        return QuantKey("dense", (("data", dtype, 1),))
    blocks = {**gguf_blocks.BLOCK_KEYS, **gguf_k_blocks.K_KEYS, **groups.GROUP_KEYS}
    if dtype not in blocks:
        raise ModelError(f"{dtype!r} is no weight format; supported: {', '.join((*dense.DENSE, *blocks))}")
    return blocks[dtype]


def dequantize(tensor: HostTensor) -> np.ndarray:
    """float32 array of the tensor's shape: the meaning of its bytes. Raises ModelError for a dtype that is no weight format."""
    quant_key(tensor.dtype)
    families = ((dense, dense.DENSE), (gguf_k_blocks, gguf_k_blocks.K_KEYS), (groups, groups.GROUP_KEYS), (gguf_blocks, gguf_blocks.BLOCK_KEYS))
    family = next(module for module, names in families if tensor.dtype in names)
    values: np.ndarray = family.dequantize(tensor.dtype, tensor.data)
    return values.reshape(tensor.shape)


def quantize(values: np.ndarray, dtype: str) -> HostTensor:
    """The float32 array in the given format. Raises ModelError when the format cannot be written or the last axis does not fit."""
    if dtype not in _WRITTEN:
        raise ModelError(f"cannot quantise to {dtype!r}; possible: {', '.join(_WRITTEN)}")
    block = BLOCK_BYTES[dtype][0]
    if values.shape[-1] % block:
        raise ModelError(f"shape {list(values.shape)} cannot be stored as {dtype}: the last axis must be a multiple of {block}")
    flat = np.asarray(values, dtype=np.float32).reshape(-1, values.shape[-1])
    encode = dense.quantize if dtype in dense.DENSE else groups.quantize if dtype in groups.GROUP_KEYS else gguf_blocks.quantize
    return HostTensor(dtype, tuple(values.shape), encode(dtype, flat))
