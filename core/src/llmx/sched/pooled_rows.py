"""What a step holds of requests that want rows of their prompt instead of tokens, and what it gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from llmx.batch import EMPTY_I32, Status, StepOutput
from llmx.request import Request
from llmx.sched.emission import Emission

__all__ = ["add_pooled", "take_pooled", "token_types"]


def add_pooled(request: Request, start: int, end: int, row: int, head: list[int], pooled: list[tuple[Request, slice]]) -> None:
    """Of the request's rows start .. end - 1, which are the step's from `row` on, those that are wanted become head rows."""
    if request.pooling is None:
        return
    first, last = {"cls": (0, 1), "last": (request.prompt_len - 1, request.prompt_len)}.get(request.pooling, (0, request.prompt_len))
    wanted = range(max(first, start), min(last, end))
    if wanted:
        pooled.append((request, slice(len(head), len(head) + len(wanted))))
        head.extend(row + position - start for position in wanted)


def token_types(rows: Sequence[tuple[Request, int]], q: Sequence[int]) -> np.ndarray:
    """i32 [T]: 1 in the second text of each pair, else 0; empty when no request is a pair. rows: (request, its computed tokens after the step)."""
    if all(request.second_text < 0 for request, _ in rows):
        return EMPTY_I32
    types = [np.arange(end - n, end) >= (request.second_text if request.second_text >= 0 else end) for (request, end), n in zip(rows, q, strict=True)]
    return np.concatenate(types).astype(np.int32)


def take_pooled(
    pooled: Sequence[tuple[Request, slice]], out: StepOutput, news: dict[Request, Emission], finish: Callable[[Request, str, int], None]
) -> None:
    """Each request's rows into its news; one with a NaN or an infinite element is ended instead. pooled: requests and their head rows."""
    for request, span in pooled:
        if request.finished:
            continue
        rows = out.hidden["pooled"][span]
        good = bool(np.isfinite(rows).all())
        news[request] = Emission(request, [], pooled=rows if good else None)
        if not good:
            finish(request, "error", int(Status.NAN))
