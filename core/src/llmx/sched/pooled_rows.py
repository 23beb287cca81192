"""What a step holds of requests that want rows of their prompt instead of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmx.batch import EMPTY_I32
from llmx.request import Request

__all__ = ["all_numbers", "pooled_rows", "token_types"]


def pooled_rows(request: Request, start: int, end: int) -> range:
    """Of the request's rows start .. end - 1, counted from 0, those that are wanted."""
    wanted = {"cls": (0, 1), "last": (request.prompt_len - 1, request.prompt_len)}.get(request.pooling or "", (0, request.prompt_len))
    return range(max(wanted[0] - start, 0), min(wanted[1], end) - start)


def token_types(rows: Sequence[tuple[Request, int]], q: Sequence[int]) -> np.ndarray:
    """i32 [T]: 1 in the second text of each pair, else 0; empty when no request is a pair. rows: (request, its computed tokens after the step)."""
    if all(request.second_text < 0 for request, _ in rows):
        return EMPTY_I32
    types = [np.arange(end - n, end) >= (request.second_text if request.second_text >= 0 else end) for (request, end), n in zip(rows, q, strict=True)]
    return np.concatenate(types).astype(np.int32)


def all_numbers(rows: np.ndarray) -> bool:
    """True unless an element is NaN or infinite."""
    return bool(np.isfinite(rows).all())
