"""Processing: the logits processors of one answer, run on its row before a token is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from llmx.hooks.types import LogitsProcessor

__all__ = ["Processing"]


class Processing:
    """steps: (name, processor), run in this order. error: why the answer cannot go on; it names the processor."""

    def __init__(self, steps: Sequence[tuple[str, LogitsProcessor]]) -> None:
        self._steps = tuple(steps)
        self._tokens = np.empty(256, np.int32)
        self._known = 0
        self.error: str | None = None

    def run(self, tokens: Sequence[int], prompt_len: int, logits: np.ndarray, drafts: Sequence[int] = ()) -> np.ndarray:
        """f32 [V]: the logits that are drawn from; all -inf when a processor failed. tokens: of prompt and answer; they only grow.

        drafts: guesses that stand before this row. A failure behind them is not the answer's: should they be right, the row comes again without them.
        """
        history, error = self._history(tokens), self.error
        if drafts:
            history = np.array([*history, *drafts], np.int32)
            history.flags.writeable = False
        for name, processor in self._steps:
            if error is None:
                try:
                    given = processor(history, prompt_len, logits)
                    logits = _checked(logits if given is None else given, len(logits))
                except Exception as failure:  # noqa: BLE001 - a plugin may raise anything; only its own answer may suffer
                    error = f"the logits processor {name!r} failed: {type(failure).__name__}: {failure}"
        if not drafts:
            self.error = error
        return logits if error is None else np.full_like(logits, -np.inf, dtype=np.float32)

    def _history(self, tokens: Sequence[int]) -> np.ndarray:
        """All tokens as an array that nobody can write to; only new ones are copied."""
        if len(tokens) > len(self._tokens):
            kept, self._tokens = self._tokens, np.empty(2 * len(tokens), np.int32)
            self._tokens[: self._known] = kept[: self._known]
        self._tokens[self._known : len(tokens)] = tokens[self._known :]
        self._known = len(tokens)
        history = self._tokens[: self._known]
        history.flags.writeable = False
        return history


def _checked(given: object, size: int) -> np.ndarray:
    row = np.asarray(given, dtype=np.float32)
    if row.shape != (size,):
        raise ValueError(f"it gave logits of shape {row.shape} for a vocabulary of {size}")
    if np.isnan(row).any() or (row == np.inf).any():
        raise ValueError("it gave NaN or infinite logits")
    return row
