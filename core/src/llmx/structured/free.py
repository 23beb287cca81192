"""Free: the grammar that allows everything, for answers of which only the reasoning is limited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmx.structured.grammar import GrammarSpec

__all__ = ["Free"]


class Free:
    """Backend, compiled grammar and matcher in one: there is nothing to remember."""

    name = "free"
    error: str | None = None

    def compile(self, spec: GrammarSpec) -> Free:
        """Itself, whatever the spec."""
        return self

    def matcher(self) -> Free:
        """Itself."""
        return self

    def fork(self) -> Free:
        """Itself."""
        return self

    def fill(self, matchers: Sequence[Any], tokens: Sequence[Sequence[int]], rows: Sequence[int], mask: np.ndarray) -> None:
        """Allow every token in each of the rows."""
        mask[list(rows)] = 0xFFFFFFFF
