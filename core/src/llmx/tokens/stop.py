"""StopChecker: finds stop strings in text that comes in pieces, and holds back only what may become one."""

from __future__ import annotations

from collections.abc import Sequence

from llmx.record import record

__all__ = ["StopChecker", "StopHit"]


@record
class StopHit:
    """A stop string was found. piece: index, from 0, of the `feed` call (so: of the token) that completed it."""

    stop: str
    piece: int


class StopChecker:
    """Stop strings of one sequence; feed it the text delta of each token, "" included.

    The stop that is complete first wins; of several that end at the same character the longest. So the result does not depend
    on how the text was cut into pieces. Work per character is constant for each stop, however long it is.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._include = include
        self._held = ""
        self._pieces = 0
        self.hit: StopHit | None = None

    @property
    def held(self) -> str:
        """Text held back: the longest end of the text so far that is a proper beginning of a stop."""
        return self._held

    def feed(self, delta: str) -> str:
        """Text that may be shown now. With a hit: what stands before the stop (and the stop, with include); later pieces give ""."""
        if self.hit is not None:
            return ""
        self._pieces += 1
        if not self._matchers:
            return delta
        ends = [(end, -len(matcher.stop), matcher.stop) for matcher in self._matchers if (end := matcher.advance(delta)) is not None]
        text = self._held + delta
        if ends:
            end, _, stop = min(ends)
            stop_end = len(self._held) + end
            self.hit, self._held = StopHit(stop, self._pieces - 1), ""
            return text[: stop_end if self._include else stop_end - len(stop)]
        keep = max(matcher.matched for matcher in self._matchers)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end_at(self, stop: str) -> str:
        """The stop was found by other means, behind the text so far: what was held back (and the stop, with include)."""
        if self.hit is not None:
            return ""
        text = self.flush() + (stop if self._include else "")
        self.hit = StopHit(stop, self._pieces - 1)
        return text

    def flush(self) -> str:
        """The text still held back, at the end of a sequence that met no stop."""
        text, self._held = self._held, ""
        for matcher in self._matchers:
            matcher.matched = 0
        return text


class _Matcher:
    """One stop string (Knuth, Morris, Pratt 1977). matched: characters of it that the text so far ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._border = [0] * len(stop)  # longest proper prefix that is also a suffix of stop[: i + 1]
        length = 0
        for i in range(1, len(stop)):
            while length and stop[i] != stop[length]:
                length = self._border[length - 1]
            length += stop[i] == stop[length]
            self._border[i] = length

    def advance(self, delta: str) -> int | None:
        """Characters of delta up to the end of the first match, or None without one."""
        stop, border, matched = self.stop, self._border, self.matched
        if not matched and stop[0] not in delta:
            return None
        for i, char in enumerate(delta):
            while matched and char != stop[matched]:
                matched = border[matched - 1]
            matched += char == stop[matched]
            if matched == len(stop):
                return i + 1
        self.matched = matched
        return None
