"""ReasoningTrack: where an answer's reasoning begins and ends, told from the bytes of its tokens, and how many tokens it has."""

from __future__ import annotations

from copy import copy

from llmx.structured_params import ReasoningSpan

__all__ = ["ReasoningTrack"]


class ReasoningTrack:
    """One answer's way through its reasoning. `undecided`: it may still begin with the start marker or be all answer; `over`: what comes is answer.

    text: while undecided all of it; inside the end of it that may be the beginning of the end marker.
    A token is part of the reasoning when it begins between the markers.
    """

    def __init__(self, span: ReasoningSpan) -> None:
        self._start, self._end = span.start.encode(), span.end.encode()
        self._first = self._end[:1]
        self.undecided, self.over = not span.inside, False
        self._lead = True  # the start marker may still come, also where the answer begins inside
        self.text = b""
        self._begins: list[int] = []  # where in the text each of its tokens begins
        self.certain = 0  # tokens of the reasoning that are no part of the end marker, whatever follows

    def fork(self) -> ReasoningTrack:
        """Another one that stands where this one stands."""
        other = copy(self)
        other._begins = list(self._begins)
        return other

    @property
    def tokens(self) -> int:
        """Tokens of the reasoning so far; those that may become the end marker count until they do."""
        return self.certain + (0 if self.over or self.undecided else len(self._begins))

    def take(self, token: bytes) -> None:
        """The answer's next token."""
        if self.over:
            return
        if not self._lead and not self.text and self._first not in token:  # most tokens are nowhere near the marker
            self.certain += 1
            return
        self._begins.append(len(self.text))
        self.text += token
        if self._lead and not self._begin():
            return
        at = self.text.find(self._end)
        self.over = at >= 0
        self._cut(at if self.over else len(self.text) - self.standing())

    def _begin(self) -> bool:
        """Whether it is decided how the answer begins."""
        text = self.text.lstrip()
        if len(text) < len(self._start) and self._start.startswith(text):
            return False
        self._lead = False
        if text.startswith(self._start):
            skipped = len(self.text) - len(text) + len(self._start)
            self._begins = [begin - skipped for begin in self._begins if begin >= skipped]
            self.text = self.text[skipped:]
        elif self.undecided:
            self.over, self._begins = True, []
        self.undecided = False
        return not self.over

    def standing(self) -> int:
        """Bytes of the end marker that the reasoning ends with so far."""
        return next((size for size in range(min(len(self._end), len(self.text)), 0, -1) if self.text.endswith(self._end[:size])), 0)

    def _cut(self, at: int) -> None:
        """What stands before `at` is reasoning for certain."""
        self.certain += sum(begin < at for begin in self._begins)
        self._begins = [begin - at for begin in self._begins if begin >= at]
        self.text = self.text[at:]
