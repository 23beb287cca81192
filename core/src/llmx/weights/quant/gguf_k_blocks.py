"""The K formats of GGUF: 256 elements per block, in groups of 16 or 32 with integer scales, in numpy.

Source: block_q2_K ... block_q6_K in ggml-common.h. d and dmin are float16; each group has an integer scale s and, with a
minimum, an integer m:

    q2_K (16 per group): d * s * code - dmin * m    q3_K (16): d * (s - 32) * (code - 4)
    q4_K, q5_K (32 per group): as q2_K              q6_K (16): d * s * (code - 32)

Codes lie in "planes": the lowest bits of 32 (for the low bits of q6_K 64) bytes are the first 32 elements, the next higher bits
the next 32, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmx.program.ops import ActKey, QuantKey
from llmx.weights.host_tensor import BLOCK_BYTES

__all__ = ["K_KEYS", "dequantize"]

_I8 = ActKey("i8", 32)
_D, _DMIN = ("d", "f16", 256), ("dmin", "f16", 256)

K_KEYS: Mapping[str, QuantKey] = {
    "q2_K": QuantKey("q2_K", (("s", "u4", 16), ("m", "u4", 16), ("q", "u2", 256), _D, _DMIN), _I8),
    "q3_K": QuantKey("q3_K", (("h", "u1", 256), ("q", "u2", 256), ("s", "u6", 16), _D), _I8),
    "q4_K": QuantKey("q4_K", (_D, _DMIN, ("s", "u6", 32), ("m", "u6", 32), ("q", "u4", 256)), _I8),
    "q5_K": QuantKey("q5_K", (_D, _DMIN, ("s", "u6", 32), ("m", "u6", 32), ("h", "u1", 256), ("q", "u4", 256)), _I8),
    "q6_K": QuantKey("q6_K", (("q", "u4", 256), ("h", "u2", 256), ("s", "i8", 16), _D), _I8),
}


def dequantize(dtype: str, data: np.ndarray) -> np.ndarray:
    """float32 [rows, columns] of uint8 [rows, bytes per row]. Products and sums are rounded to float32 one after the other."""
    blocks = np.ascontiguousarray(data).reshape(-1, BLOCK_BYTES[dtype][1])
    decode = {"q2_K": _q2, "q3_K": _q3, "q4_K": _q4_q5, "q5_K": _q4_q5, "q6_K": _q6}[dtype]
    scale, codes, minimum = decode(blocks)  # [B, groups] f32, [B, 256] int, [B, groups] f32 or None
    groups = codes.reshape(len(blocks), scale.shape[1], -1)
    values: np.ndarray = np.multiply(scale[:, :, None], groups, dtype=np.float32)
    if minimum is not None:
        values -= minimum[:, :, None]
    return values.reshape(data.shape[0], -1)


_Decoded = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _q2(blocks: np.ndarray) -> _Decoded:
    d, dmin = _f16(blocks[:, 80:82]), _f16(blocks[:, 82:84])
    return d * (blocks[:, :16] & 15), _planes(blocks[:, 16:80], 32, 2), dmin * (blocks[:, :16] >> 4)


def _q3(blocks: np.ndarray) -> _Decoded:
    low, top = blocks[:, 96:104], blocks[:, 104:108]
    scales = np.concatenate((low & 15, low >> 4), axis=1) | _planes(top, 4, 2) << 4
    codes = _planes(blocks[:, 32:96], 32, 2) | _planes(blocks[:, :32], 32, 1) << 2
    return _f16(blocks[:, 108:110]) * (scales.astype(np.int8) - 32), codes.astype(np.int8) - 4, None


def _q4_q5(blocks: np.ndarray) -> _Decoded:
    d, dmin, packed = _f16(blocks[:, :2]), _f16(blocks[:, 2:4]), blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    codes = _planes(blocks[:, -128:], 32, 4)
    if blocks.shape[1] == BLOCK_BYTES["q5_K"][1]:
        codes = codes | _planes(blocks[:, 16:48], 32, 1) << 4
    return d * scales, codes, dmin * minima


def _q6(blocks: np.ndarray) -> _Decoded:
    codes = _planes(blocks[:, :128], 64, 4) | _planes(blocks[:, 128:192], 32, 2) << 4
    return _f16(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8), codes.astype(np.int8) - 32, None


def _planes(data: np.ndarray, size: int, bits: int) -> np.ndarray:
    """uint8 codes: of each run of `size` bytes first all lowest bits, then all next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[None, None, :, None]
    runs = data.reshape(len(data), -1, 1, size) >> shifts & np.uint8((1 << bits) - 1)
    return runs.reshape(len(data), -1)


def _f16(data: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.ascontiguousarray(data).view("<f2").astype(np.float32)
    return values
