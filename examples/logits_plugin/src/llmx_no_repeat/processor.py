"""NoRepeat: forbids each token that would complete a run of `size` tokens that stands in the answer already."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmx.hooks import LogitsModel

__all__ = ["NoRepeat"]


class NoRepeat:
    """Made for each answer. args: size, a whole number from 1, by default 3."""

    def __init__(self, args: dict[str, Any], model: LogitsModel) -> None:
        size = args.pop("size", 3)
        if not isinstance(size, int) or size < 1 or args:
            raise ValueError("it takes size, a whole number from 1")
        self._size = size

    def __call__(self, tokens: np.ndarray, prompt_len: int, logits: np.ndarray) -> None:
        """tokens: i32 [n], prompt and answer so far; logits: f32 [V], changed in place. A pure function of both."""
        answer = tokens[prompt_len:]
        if len(answer) < self._size:
            return
        runs = np.lib.stride_tricks.sliding_window_view(answer, self._size)
        begun = answer[len(answer) - self._size + 1 :]
        logits[runs[(runs[:, :-1] == begun).all(axis=1), -1]] = -np.inf
