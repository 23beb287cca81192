"""What a stored weight means: its QuantKey, its float32 values, and the way back for schemes that tests and converters write."""

from __future__ import annotations

import numpy as np

from llmx.errors import ModelError
from llmx.program.ops import QuantKey
from llmx.weights.host_tensor import BLOCK_BYTES, HostTensor
from llmx.weights.quant import dense, gguf_blocks

__all__ = ["dequantize", "quant_key", "quantize"]


def quant_key(dtype: str) -> QuantKey:
    """How a HostTensor of this dtype is stored. Raises ModelError for a dtype that is no weight format."""
    if dtype in dense.DENSE:
        return QuantKey("dense", (("data", dtype, 1),))
    try:
        return gguf_blocks.BLOCK_KEYS[dtype]
    except KeyError:
        known = ", ".join((*dense.DENSE, *gguf_blocks.BLOCK_KEYS))
        raise ModelError(f"{dtype!r} is no weight format; supported: {known}") from None


def dequantize(tensor: HostTensor) -> np.ndarray:
    """float32 array of the tensor's shape: the meaning of its bytes. Raises ModelError for a dtype that is no weight format."""
    quant_key(tensor.dtype)
    decode = dense.dequantize if tensor.dtype in dense.DENSE else gguf_blocks.dequantize
    return decode(tensor.dtype, tensor.data).reshape(tensor.shape)


def quantize(values: np.ndarray, dtype: str) -> HostTensor:
    """The float32 array in the given format. Raises ModelError when the format cannot be written or the last axis does not fit."""
    if dtype not in (*dense.DENSE, "q4_0", "q4_1", "q8_0"):
        raise ModelError(f"cannot quantise to {dtype!r}; possible: {', '.join(dense.DENSE)}, q4_0, q4_1, q8_0")
    block = BLOCK_BYTES[dtype][0]
    if values.shape[-1] % block:
        raise ModelError(f"shape {list(values.shape)} cannot be stored as {dtype}: the last axis must be a multiple of {block}")
    flat = np.asarray(values, dtype=np.float32).reshape(-1, values.shape[-1])
    encode = dense.quantize if dtype in dense.DENSE else gguf_blocks.quantize
    return HostTensor(dtype, tuple(values.shape), encode(dtype, flat))
