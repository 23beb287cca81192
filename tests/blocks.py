"""Tensors of every block format with random codes, also of formats that llmx reads but does not write."""

from __future__ import annotations

import numpy as np

from llmx.executor import BLOCK_BYTES, HostTensor

__all__ = ["BLOCK_TYPES", "random_tensor"]

# format -> places of its float16 scales (the first) and minima (the second) in a block
_HALVES = {
    **{"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,)},
    **{"q2_K": (80, 82), "q3_K": (108,), "q4_K": (0, 2), "q5_K": (0, 2), "q6_K": (208,)},
}
_LARGEST = {"q4_0": 8, "q4_1": 15, "q5_0": 16, "q5_1": 31, "q8_0": 128, "q2_K": 45, "q3_K": 128, "q4_K": 945, "q5_K": 1953, "q6_K": 4096}  # times d
BLOCK_TYPES = tuple(_HALVES)


def random_tensor(dtype: str, rows: int, cols: int, seed: int = 0, spread: float = 0.0) -> HostTensor:
    """Any codes and integer scales; float16 scales of both signs that give values of about 1, times up to 10^-spread."""
    elements, size = BLOCK_BYTES[dtype]
    if cols % elements:
        raise ValueError(f"{cols} columns are no multiple of the {elements} elements of a {dtype} block")
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for place, largest in zip(_HALVES[dtype], (_LARGEST[dtype], _LARGEST[dtype] if dtype.endswith("K") else 1), strict=False):
        halves = rng.normal(0, 3 / largest, len(blocks)) * 10.0 ** -rng.uniform(0, spread, len(blocks))
        blocks[:, place : place + 2] = halves.astype("<f2").view(np.uint8).reshape(-1, 2)
    return HostTensor(dtype, (rows, cols), blocks.reshape(rows, -1))
