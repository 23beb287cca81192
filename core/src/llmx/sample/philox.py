"""Philox4x32-10: the counter-based random numbers of sampling.

A block of four 32-bit words is a pure function of a 64-bit key (the request's seed) and a 128-bit counter (the position of
the token that is drawn, and a stream). So a draw needs no state: it is the same alone or in a batch, after a preemption,
with drafts or without. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["philox4x32", "uniform"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # the key grows by the golden ratio and by sqrt(3) - 1
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox4x32(counter: ArrayLike, key: ArrayLike) -> NDArray[np.uint32]:
    """The random block uint32 [..., 4] of each counter [..., 4] under each key [..., 2] (32-bit words, low word first)."""
    words = np.asarray(counter, dtype=np.uint64)
    keys = np.asarray(key, dtype=np.uint64)
    c0, c1, c2, c3 = (words[..., i] for i in range(4))
    k0, k1 = keys[..., 0], keys[..., 1]
    for _ in range(_ROUNDS):
        wide0 = np.uint64(_MULTIPLIERS[0]) * c0
        wide1 = np.uint64(_MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (wide1 >> _WORD) ^ c1 ^ k0, wide1 & _LOW, (wide0 >> _WORD) ^ c3 ^ k1, wide0 & _LOW
        k0 = (k0 + np.uint64(_WEYL[0])) & _LOW
        k1 = (k1 + np.uint64(_WEYL[1])) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def uniform(seed: ArrayLike, position: ArrayLike, stream: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2**-32, one for each (seed, position); both broadcast.

    seed: key, 0 <= seed < 2**64. position: low half of the counter, of the token that is drawn. stream: high half.
    """
    seeds, positions = np.broadcast_arrays(np.asarray(seed, dtype=np.uint64), np.asarray(position, dtype=np.uint64))
    streams = np.full_like(positions, stream)
    counter = np.stack([positions & _LOW, positions >> _WORD, streams & _LOW, streams >> _WORD], axis=-1)
    key = np.stack([seeds & _LOW, seeds >> _WORD], axis=-1)
    first: NDArray[np.float64] = philox4x32(counter, key)[..., 0].astype(np.float64)
    return first * 2.0**-32
