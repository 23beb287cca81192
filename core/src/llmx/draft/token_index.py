"""TokenIndex: where the last few tokens of a sequence stood before."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

__all__ = ["TOKEN_BITS", "TokenIndex", "common_length"]

TOKEN_BITS = 21  # of a token id in a key: vocabularies up to two million


class TokenIndex:
    """The ends of every run of `run` tokens in a growing sequence, as chains from the latest to the first.

    A token costs one dictionary entry at most, and 8 bytes. tokens: the sequence; it may grow, and only grow, between calls.
    """

    def __init__(self, tokens: Sequence[int], run: int) -> None:
        self._tokens, self._run = tokens, run
        self._mask = (1 << TOKEN_BITS * run) - 1
        self._latest: dict[int, int] = {}  # key of a run -> its latest end
        self._earlier = array("q")  # per end: the end before it of an equal run; -1: none
        self._key = 0  # of the run before the next end

    def grow(self, limit: int) -> None:
        """Index at most `limit` further tokens."""
        earlier, latest, mask, run = self._earlier, self._latest, self._mask, self._run
        key, first = self._key, len(earlier)
        for end, token in enumerate(self._tokens[first : first + limit], first + 1):
            key = (key << TOKEN_BITS | token) & mask
            if end >= run:
                earlier.append(latest.get(key, -1))
                latest[key] = end
            else:
                earlier.append(-1)
        self._key = key

    def ends(self, last: Sequence[int]) -> Iterator[int]:
        """Indexes behind the runs that equal `last` (as many tokens as a run has), the latest first."""
        key = 0
        for token in last:
            key = key << TOKEN_BITS | token
        end = self._latest.get(key, -1)
        while end > 0:
            yield end
            end = self._earlier[end - 1]


def common_length(one: Sequence[int], one_end: int, other: Sequence[int], other_end: int, limit: int) -> int:
    """How many tokens before the two ends are equal, at most `limit`."""
    limit, length = min(limit, one_end, other_end), 0
    while length < limit and one[one_end - 1 - length] == other[other_end - 1 - length]:
        length += 1
    return length
