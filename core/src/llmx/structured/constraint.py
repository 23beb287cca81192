"""Constraint: what one answer carries of its grammar while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmx.sample.processing import Processing
from llmx.structured.grammar import Backend, Compiled, Matcher
from llmx.structured.reasoning import ReasoningGate

__all__ = ["Constraint"]

_NO_IDS = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Constraint:
    """A matcher and how far it has come. Where the grammar leaves a choice, min_tokens forbids `stop_ids`; where it does not, it wins."""

    backend: Backend
    matcher: Matcher
    min_tokens: int = 0
    stop_ids: np.ndarray = field(default_factory=lambda: _NO_IDS)  # i32
    taken: int = 0  # generated tokens that the matcher has seen
    error: str | None = None
    compiled: Compiled | None = None  # with a gate: for matchers that look ahead while it is undecided
    gate: ReasoningGate | None = None  # what keeps the grammar off the reasoning, and ends it
    free: bool = False  # there is no grammar, or none behind the reasoning
    processing: Processing | None = None  # what changes the logits first

    @property
    def forks(self) -> bool:
        """It can look ahead over drafts."""
        return hasattr(self.matcher, "fork")

    def fork(self) -> Constraint:
        """Another one that stands where this one stands, for masks only. Needs `forks`."""
        matcher: Any = self.matcher
        return replace(self, matcher=matcher.fork(), gate=None if self.gate is None else self.gate.fork(), processing=None)

    @property
    def done(self) -> bool:
        """Nothing will be masked or changed any more."""
        return self.open and self.processing is None

    @property
    def open(self) -> bool:
        """Nothing will be masked any more."""
        return self.free and (self.gate is None or self.gate.over)

    def without_stops(self, row: np.ndarray) -> None:
        """Take the stop ids out of a mask row (u32 [words], changed in place), unless nothing else would be left."""
        kept = row.copy()
        for token in self.stop_ids.tolist():
            kept[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        if kept.any():
            row[:] = kept
