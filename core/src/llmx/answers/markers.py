"""Finding markers in text that comes in pieces: nothing is decided before it is certain, nothing is held longer than needed."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Found", "find"]

Found = tuple[int, str | None]


def find(text: str, markers: Sequence[str], *, final: bool = False) -> Found:
    """(start, marker) of the first marker in text, of several at one place the longest; else (start, None): what stands before start is
    free of markers, and text[start:] may become one with what follows. final: nothing follows."""
    hits = [(at, -len(marker), marker) for marker in markers if (at := text.find(marker)) >= 0]
    wait = len(text) if final else min((len(text) - _overlap(text, marker) for marker in markers), default=len(text))
    if hits:
        start, _, marker = min(hits)
        if start < wait:
            return start, marker
    return wait, None


def _overlap(text: str, marker: str) -> int:
    """Length of the longest proper beginning of marker that text ends with."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
