"""ReasoningGate: keeps a grammar off an answer's reasoning, so that it holds from the first token behind the end marker on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmx.structured_params import ReasoningSpan

__all__ = ["MarkerTokens", "ReasoningGate"]


class MarkerTokens:
    """What a vocabulary has to do with one span's markers. Made once for a span, in one pass over the tokens.

    opening[o]: ids that go on with the start marker, of which o bytes stand. crossing[o]: ids that complete the end marker, of which o bytes
    stand, and bring more than white space behind it; with 0 the whole marker is inside the token.
    """

    def __init__(self, span: ReasoningSpan, tokens: Sequence[bytes]) -> None:
        self.tokens = tokens
        self.start, self.end = span.start.encode(), span.end.encode()
        self.opening: list[list[int]] = [[] for _ in self.start]
        self.crossing: list[list[int]] = [[] for _ in self.end]
        last = self.end[-1:]
        for token, text in enumerate(tokens):
            if not text:
                continue
            for at, letter in enumerate(self.start):
                if letter == text[0] and (self.start.startswith(text, at) or text.startswith(self.start[at:])):
                    self.opening[at].append(token)
            if last not in text[:-1]:
                continue
            if self.end in text and text.split(self.end, 1)[1].strip():
                self.crossing[0].append(token)
            for at in range(1, len(self.end)):
                rest = self.end[at:]
                if text.startswith(rest) and text[len(rest) :].strip():
                    self.crossing[at].append(token)


class ReasoningGate:
    """One answer's way through its reasoning. While `undecided` it may still begin with the start marker or be all answer; `over`: the grammar
    holds. A token that ends the reasoning in its middle brings white space only, which belongs to neither."""

    def __init__(self, markers: MarkerTokens, span: ReasoningSpan, eos_ids: Sequence[int]) -> None:
        self._markers, self._eos_ids = markers, tuple(eos_ids)
        self.undecided, self.over = not span.inside, False
        self._text = b""  # while undecided: all of it; inside: the end of it that may be the beginning of the marker
        self.held: list[int] = []  # tokens while undecided

    def take(self, new: Sequence[int]) -> list[int]:
        """Pass new tokens; those that are the grammar's come back."""
        for at, token in enumerate(new):
            if self.over:
                return list(new[at:])
            self._text += self._markers.tokens[token]
            if self.undecided:
                self.held.append(token)
                if not self._begin():
                    continue
                if self.over:
                    return [*self.held, *new[at + 1 :]]
            if self._markers.end in self._text:
                self.over = True
            else:
                self._text = self._text[-len(self._markers.end) :]
        return []

    def _begin(self) -> bool:
        """Whether it is decided how the answer begins."""
        text, start = self._text.lstrip(), self._markers.start
        if len(text) < len(start) and start.startswith(text):
            return False
        self.undecided = False
        self.over = not text.startswith(start)
        self._text = text[len(start) :]
        return True

    def open_start(self, row: np.ndarray) -> None:
        """While undecided: also allow what goes on with the start marker. row: u32 [words], changed in place."""
        for token in self._markers.opening[len(self._text.lstrip())]:
            row[token >> 5] |= np.uint32(1 << (token & 31))

    def inside_mask(self, row: np.ndarray) -> None:
        """The mask inside the reasoning: all but its end by EOS, and tokens that bring an answer along with the end marker."""
        row[:] = 0xFFFFFFFF
        end = self._markers.end
        stands = [at for at in range(1, len(end)) if self._text.endswith(end[:at])]
        for token in (*self._eos_ids, *(one for at in (0, *stands) for one in self._markers.crossing[at])):
            row[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
