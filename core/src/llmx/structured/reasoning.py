"""ReasoningGate: keeps a grammar off an answer's reasoning, so that it holds behind the end marker, and ends reasoning whose budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from llmx.answers.reasoning_track import ReasoningTrack
from llmx.structured_params import ReasoningSpan

__all__ = ["MarkerTokens", "ReasoningGate"]


class MarkerTokens:
    """What a vocabulary has to do with one span's markers. Made once for a span, in one pass over the tokens.

    opening[o]: ids that go on with the start marker, of which o bytes stand. crossing[o]: ids that complete the end marker, of which o bytes
    stand, and bring more than white space behind it; with 0 the whole marker is inside the token. closing[o]: the longest token that goes on with
    the end marker, of which o bytes stand, and no further; -1: none.
    """

    def __init__(self, span: ReasoningSpan, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.start, self.end = span.start.encode(), span.end.encode()
        self.opening: list[list[int]] = [[] for _ in self.start]
        self.crossing: list[list[int]] = [[] for _ in self.end]
        self.closing = [-1 for _ in self.end]
        last, in_start, in_end = self.end[-1:], _places(self.start), _places(self.end)
        for token, text in enumerate(tokens):
            if not text:
                continue
            for at in in_start.get(text[0], ()):
                if self.start.startswith(text, at) or text.startswith(self.start[at:]):
                    self.opening[at].append(token)
            for at in in_end.get(text[0], ()):
                if self.end.startswith(text, at) and len(text) > len(tokens[self.closing[at]] if self.closing[at] >= 0 else b""):
                    self.closing[at] = token
            if last not in text[:-1]:
                continue
            if self.end in text and text.split(self.end, 1)[1].strip():
                self.crossing[0].append(token)
            for at in range(1, len(self.end)):
                rest = self.end[at:]
                if text.startswith(rest) and text[len(rest) :].strip():
                    self.crossing[at].append(token)

    def spelled(self) -> list[int]:
        """The end marker's tokens, as they are written when the budget is spent; [] where the vocabulary has none for a part of it."""
        ids: list[int] = []
        at = 0
        while at < len(self.end):
            token = self.closing[at]
            if token < 0:
                return []
            ids.append(token)
            at += len(self.tokens[token])
        return ids


def _places(marker: bytes) -> dict[int, list[int]]:
    """Where in a marker each of its letters stands."""
    return {letter: [at for at, other in enumerate(marker) if other == letter] for letter in marker}


class ReasoningGate:
    """One answer's way through its reasoning. While `undecided` it may still begin with the start marker or be all answer; `over`: the grammar
    holds. A token that ends the reasoning in its middle brings white space only, which belongs to neither.

    eos_ids: may not end the answer inside; None: there is no grammar, so nothing is forbidden before the budget is spent.
    """

    def __init__(self, markers: MarkerTokens, span: ReasoningSpan, eos_ids: Sequence[int] | None) -> None:
        self._markers, self._eos_ids, self._budget = markers, eos_ids, span.budget
        self._track = ReasoningTrack(span)
        self.held: list[int] = []  # tokens while undecided

    def fork(self) -> ReasoningGate:
        """Another one that stands where this one stands."""
        other = copy(self)
        other._track, other.held = self._track.fork(), list(self.held)
        return other

    @property
    def undecided(self) -> bool:
        """The answer may still begin with the start marker, or be all answer."""
        return self._track.undecided

    @property
    def over(self) -> bool:
        """The grammar holds."""
        return self._track.over

    def take(self, new: Sequence[int]) -> list[int]:
        """Pass new tokens; those that are the grammar's come back."""
        for at, token in enumerate(new):
            if self.over:
                return list(new[at:])
            begins = self.undecided
            if begins:
                self.held.append(token)
            self._track.take(self._markers.tokens[token])
            if begins and self.over and not self._reasoned():
                return [*self.held, *new[at + 1 :]]
        return []

    def _reasoned(self) -> bool:
        """Whether the answer began with the start marker."""
        return b"".join(self._markers.tokens[token] for token in self.held).lstrip().startswith(self._markers.start)

    def open_start(self, row: np.ndarray) -> None:
        """While undecided: also allow what goes on with the start marker. row: u32 [words], changed in place."""
        for token in self._markers.opening[len(self._track.text.lstrip())]:
            row[token >> 5] |= np.uint32(1 << (token & 31))

    def inside_mask(self, row: np.ndarray) -> None:
        """The mask inside the reasoning: with the budget spent what goes on with the end marker, one token at a time; else all but, before a grammar,
        its end by EOS, and tokens that bring an answer along with the end marker."""
        end, text = self._markers.end, self._track.text
        if self._budget is not None and self._track.tokens >= self._budget:
            closing = self._markers.closing
            token = next(one for one in (closing[self._track.standing()], closing[0]) if one >= 0)
            row[:] = 0
            row[token >> 5] = np.uint32(1 << (token & 31))
            return
        row[:] = 0xFFFFFFFF
        if self._eos_ids is None:
            return
        stood = [at for at in range(1, len(end)) if text.endswith(end[:at])]
        for token in (*self._eos_ids, *(one for at in (0, *stood) for one in self._markers.crossing[at])):
            row[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
