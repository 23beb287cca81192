"""Groups of 4 or 8 bits along the input, as GPTQ and AWQ checkpoints mean them, in numpy. Where they are stored: llmx.weights.grouped.

A row is cut into groups of 32, 64 or 128 elements. A group is a float16 scale d, for int4z a zero point z (u16), then the codes, in runs of 32
elements: 16 bytes with the codes of elements j and j + 16 in byte j, or 32 int8. The name has the group: int4_g128.

    int4: d * (code - 8)    int4z: d * (code - z), z from 0 to 16    int8: d * code

All three equal GGUF block types exactly (`as_blocks`): int4 is q4_0, int8 is q8_0, and int4z is q5_0, whose codes reach from -16 to 15 as code - z does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmx.program.ops import ActKey, QuantKey
from llmx.weights.host_tensor import BLOCK_BYTES, GROUP_SIZES, HostTensor

__all__ = ["AS_BLOCKS", "GROUP_KEYS", "as_blocks", "dequantize", "parts_of", "quantize", "stored"]

_I8 = ActKey("i8", 32)
_BLOCK = 32
AS_BLOCKS: Mapping[str, str] = {
    f"{name}_g{group}": block for name, block in (("int4", "q4_0"), ("int4z", "q5_0"), ("int8", "q8_0")) for group in GROUP_SIZES
}


def _key(name: str) -> QuantKey:
    group = BLOCK_BYTES[name][0]
    zero = (("z", "u16", group),) if name.startswith("int4z") else ()
    return QuantKey(name, (("d", "f16", group), *zero, ("q", "i8" if name.startswith("int8") else "u4", group)), _I8)


GROUP_KEYS: Mapping[str, QuantKey] = {name: _key(name) for name in AS_BLOCKS}


def parts_of(dtype: str, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes [rows, columns], scales float32 [rows, groups], zero points int16 [rows, groups]) of uint8 [rows, bytes per row].

    Codes are uint8 of 4 bits or int8; a weight is scale * (code - zero point).
    """
    rows, (group, size) = data.shape[0], BLOCK_BYTES[dtype]
    blocks = np.ascontiguousarray(data).reshape(rows, -1, size)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0].astype(np.float32)
    if dtype.startswith("int8"):
        return np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8).reshape(rows, -1), scales, np.zeros(scales.shape, np.int16)
    if dtype.startswith("int4z"):
        zeros = np.ascontiguousarray(blocks[:, :, 2:4]).view("<u2")[:, :, 0].astype(np.int16)
    else:
        zeros = np.full(scales.shape, 8, np.int16)
    runs = blocks[:, :, -(group // 2) :].reshape(rows, -1, _BLOCK // 2)
    return np.concatenate((runs & 15, runs >> 4), axis=2).reshape(rows, -1), scales, zeros


def dequantize(dtype: str, data: np.ndarray) -> np.ndarray:
    """float32 [rows, columns] of uint8 [rows, bytes per row]; exact."""
    codes, scales, zeros = parts_of(dtype, data)
    centred = codes.reshape(*scales.shape, -1).astype(np.int16) - zeros[:, :, None]
    values: np.ndarray = np.multiply(scales[:, :, None], centred, dtype=np.float32)
    return values.reshape(len(codes), -1)


def stored(dtype: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> np.ndarray:
    """uint8 [rows, bytes per row] of codes [rows, columns] (4 bits, or int8), scales float16 and zero points (int4z) [rows, groups]."""
    rows, (group, size) = codes.shape[0], BLOCK_BYTES[dtype]
    out = np.empty((rows, scales.shape[1], size), np.uint8)
    out[:, :, :2] = _bytes(scales, "<f2")
    if dtype.startswith("int8"):
        out[:, :, 2:] = codes.astype(np.int8).view(np.uint8).reshape(rows, -1, group)
    else:
        if dtype.startswith("int4z"):
            assert zeros is not None
            out[:, :, 2:4] = _bytes(zeros, "<u2")
        out[:, :, -(group // 2) :] = _halves(codes.astype(np.uint8).reshape(rows, -1, _BLOCK)).reshape(rows, -1, group // 2)
    return out.reshape(rows, -1)


def quantize(dtype: str, values: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes per row] of float32 [rows, columns], columns whole groups: codes rounded to nearest, one scale per group."""
    rows, group = values.shape[0], BLOCK_BYTES[dtype][0]
    x = np.asarray(values, np.float32).reshape(rows, -1, group)
    low, high = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
    most, least = {"int4z": (15, 0), "int4_": (7, -8), "int8_": (127, -128)}[dtype[:5]]
    span = (high - low) / 15 if dtype.startswith("int4z") else np.maximum(high, -low) / most
    d = span.astype(np.float16)
    inverse = np.divide(1, d, out=np.zeros_like(span), where=d != 0, dtype=np.float32)
    zeros = np.clip(np.rint(-low * inverse), 0, 15) if dtype.startswith("int4z") else np.zeros_like(span)
    codes = np.clip(np.rint(x * inverse[:, :, None]) + zeros[:, :, None], least, most).reshape(rows, -1)
    return stored(dtype, codes + 8 if dtype.startswith("int4_") else codes, d, zeros)


def as_blocks(tensor: HostTensor) -> HostTensor:
    """The same values as a GGUF block type; a tensor that is not stored in groups as it is."""
    if tensor.dtype not in AS_BLOCKS:
        return tensor
    block, group, rows = AS_BLOCKS[tensor.dtype], BLOCK_BYTES[tensor.dtype][0], tensor.rows
    codes, _, zeros = parts_of(tensor.dtype, tensor.data)
    groups = np.ascontiguousarray(tensor.data).reshape(rows, zeros.shape[1], -1)
    out = np.empty((rows, codes.shape[1] // _BLOCK, BLOCK_BYTES[block][1]), np.uint8)
    out[:, :, :2] = np.repeat(groups[:, :, :2], group // _BLOCK, axis=1)
    runs = codes.reshape(rows, -1, _BLOCK)
    if block == "q8_0":
        out[:, :, 2:] = runs.view(np.uint8)
    elif block == "q4_0":
        out[:, :, 2:] = _halves(runs)
    else:
        five = (runs + (16 - np.repeat(zeros, group // _BLOCK, axis=1))[:, :, None]).astype(np.uint8)
        out[:, :, 2:6] = np.packbits(five >> 4, axis=2, bitorder="little")
        out[:, :, 6:] = _halves(five & 15)
    return HostTensor(block, tensor.shape, out.reshape(rows, -1))


def _halves(runs: np.ndarray) -> np.ndarray:
    """Codes of 4 bits [..., 32] -> bytes [..., 16]: the second half of a run in the high bits."""
    half = _BLOCK // 2
    packed: np.ndarray = runs[..., :half] | runs[..., half:] << 4
    return packed


def _bytes(values: np.ndarray, kind: str) -> np.ndarray:
    raw: np.ndarray = np.ascontiguousarray(values.astype(kind))[:, :, None].view(np.uint8)
    return raw
