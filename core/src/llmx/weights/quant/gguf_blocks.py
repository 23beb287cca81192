"""The block formats of GGUF with 32 elements per block, in numpy. B blocks, 32 elements each.

Source: block_q4_0 ... block_q8_0 in ggml-common.h. d and m are float16, first in the block; then, for 5 bits, 4 bytes of high
bits (bit j of the little-endian word belongs to element j); then the codes: for 4 and 5 bits byte j holds the low bits of
element j in its low half and of element j + 16 in its high half; for 8 bits one int8 per element.

    q4_0: d * (code - 8)    q4_1: d * code + m    q5_0: d * (code - 16)    q5_1: d * code + m    q8_0: d * code
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmx.program.ops import ActKey, QuantKey
from llmx.weights.host_tensor import BLOCK_BYTES

__all__ = ["BLOCK_KEYS", "dequantize", "quantize"]

_ZERO: Mapping[str, int] = {"q4_0": 8, "q5_0": 16}  # the code that means 0
_I8 = ActKey("i8", 32)  # products read the input row as int8 with one scale per 32 elements
_D, _M, _Q4 = ("d", "f16", 32), ("m", "f16", 32), ("q", "u4", 32)

BLOCK_KEYS: Mapping[str, QuantKey] = {
    "q4_0": QuantKey("q4_0", (_D, _Q4), _I8),
    "q4_1": QuantKey("q4_1", (_D, _M, _Q4), _I8),
    "q5_0": QuantKey("q5_0", (_D, ("h", "u1", 32), _Q4), _I8),
    "q5_1": QuantKey("q5_1", (_D, _M, ("h", "u1", 32), _Q4), _I8),
    "q8_0": QuantKey("q8_0", (_D, ("q", "i8", 32)), _I8),
}


def dequantize(dtype: str, data: np.ndarray) -> np.ndarray:
    """float32 [rows, columns] of uint8 [rows, bytes per row]. Products and sums are rounded to float32 one after the other."""
    blocks = np.ascontiguousarray(data).reshape(-1, BLOCK_BYTES[dtype][1])
    d, rest = _f16(blocks[:, :2]), blocks[:, 2:]
    m: np.ndarray | None = None
    if dtype in ("q4_1", "q5_1"):
        m, rest = _f16(rest[:, :2]), rest[:, 2:]
    if dtype == "q8_0":
        codes = rest.view(np.int8).astype(np.int16)
    else:
        high: np.ndarray | int = 0
        if dtype in ("q5_0", "q5_1"):
            high = np.unpackbits(rest[:, :4], axis=1, bitorder="little") << 4
            rest = rest[:, 4:]
        codes = (np.concatenate((rest & 15, rest >> 4), axis=1) | high).astype(np.int16) - _ZERO.get(dtype, 0)
    values: np.ndarray = np.multiply(d, codes, dtype=np.float32)
    if m is not None:
        values += m
    return values.reshape(data.shape[0], -1)


def quantize(dtype: str, values: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes per row] of float32 [rows, columns], columns a multiple of 32, by ggml's reference rounding.

    For q4_0, q4_1 and q8_0 (small test models, converted files); KeyError for the others.
    """
    encode = {"q4_0": _encode_q4_0, "q4_1": _encode_q4_1, "q8_0": _encode_q8_0}[dtype]
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, 32)
    out: np.ndarray = encode(blocks).reshape(values.shape[0], -1)
    return out


def _encode_q4_0(x: np.ndarray) -> np.ndarray:
    # the value of largest magnitude, sign kept, becomes code 0: one more step on its side
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)
    d = extreme / np.float32(-8)
    codes = np.clip(np.trunc(x * _inverse(d) + np.float32(8.5)), 0, 15).astype(np.uint8)
    return np.concatenate((_bytes16(d), _nibbles(codes)), axis=1)


def _encode_q4_1(x: np.ndarray) -> np.ndarray:
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(15)
    codes = np.clip(np.trunc((x - low) * _inverse(d) + np.float32(0.5)), 0, 15).astype(np.uint8)
    return np.concatenate((_bytes16(d), _bytes16(low), _nibbles(codes)), axis=1)


def _encode_q8_0(x: np.ndarray) -> np.ndarray:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    codes = np.copysign(np.trunc(np.abs(scaled) + np.float32(0.5)), scaled).astype(np.int8)  # halves away from zero, as roundf
    return np.concatenate((_bytes16(d), codes.view(np.uint8)), axis=1)


def _inverse(d: np.ndarray) -> np.ndarray:
    inverse: np.ndarray = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return inverse


def _f16(data: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.ascontiguousarray(data).view("<f2").astype(np.float32)
    return values


def _bytes16(values: np.ndarray) -> np.ndarray:
    raw: np.ndarray = values.astype("<f2").view(np.uint8)
    return raw


def _nibbles(codes: np.ndarray) -> np.ndarray:
    return np.asarray(codes[:, :16] | (codes[:, 16:] << 4), dtype=np.uint8)
