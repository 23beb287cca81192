"""Dense storage in numpy: f32, f16 and bf16 (the upper half of an f32)."""

from __future__ import annotations

import numpy as np

__all__ = ["DENSE", "dequantize", "quantize"]

DENSE = ("f32", "f16", "bf16")


def dequantize(dtype: str, data: np.ndarray) -> np.ndarray:
    """float32 [rows, columns] of uint8 [rows, bytes per row]; exact."""
    if dtype == "bf16":
        return (np.ascontiguousarray(data).view("<u2").astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(data).view("<f4" if dtype == "f32" else "<f2").astype(np.float32)


def quantize(dtype: str, values: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes per row] of float32 [rows, columns], rounded to nearest even; NaN stays NaN."""
    values = np.ascontiguousarray(values, dtype="<f4")
    if dtype == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype("<u2").view(np.uint8)
    return values.astype("<f4" if dtype == "f32" else "<f2").view(np.uint8)
