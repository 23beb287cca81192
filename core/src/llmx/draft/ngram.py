"""NgramDrafter: what followed the last few tokens when they stood in this request before (prompt lookup).

Source: Saxena, "Prompt Lookup Decoding" (2023). Good where an answer repeats its prompt: edits, quotes, summaries, code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from llmx.draft.settings import whole_number
from llmx.draft.token_index import TokenIndex, common_length
from llmx.errors import ConfigError

__all__ = ["NGRAM_SETTINGS", "NgramDrafter"]

NGRAM_SETTINGS = ("prompt_lookup_max", "prompt_lookup_min")
_MIN, _MAX = 2, 5  # tokens that must be equal, and beyond which a longer match is no better, unless the user says otherwise
_CANDIDATES = 32  # places compared per guess
_EVIDENCE = 32  # equal tokens counted for the place that was chosen


class NgramDrafter:
    """settings: prompt_lookup_min and prompt_lookup_max, the shortest and the longest run of tokens that is looked up. Raises ConfigError."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        least, most = (whole_number(settings, name, 1, 32) for name in ("prompt_lookup_min", "prompt_lookup_max"))
        self.least = least if least is not None else _MIN if most is None else min(_MIN, most)
        self.most = most if most is not None else max(_MAX, self.least)
        if self.least > self.most:
            raise ConfigError(
                f"speculative_config: prompt_lookup_min is {self.least}, above prompt_lookup_max, which is {self.most}: lower it", field="speculative_config"
            )

    def begin(self, tokens: Sequence[int], *, private: bool) -> _Proposer:
        """Every request looks into itself only."""
        return _Proposer(tokens, self.least, self.most)


class _Proposer:
    def __init__(self, tokens: Sequence[int], least: int, most: int) -> None:
        self._tokens, self._least, self._most = tokens, least, most
        self._index = TokenIndex(tokens, least)
        self._indexed = 0

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        """The place with the longest match; of equal ones the latest."""
        tokens, length = self._tokens, len(self._tokens)
        self._index.grow(length - 1 - self._indexed)  # the last token ends the run that is looked for
        self._indexed = max(length - 1, 0)
        best, matched = 0, 0
        for end in islice(self._index.ends(tokens[length - self._least :]), _CANDIDATES) if length >= self._least else ():
            found = common_length(tokens, length, tokens, end, self._most)
            if found > matched:
                best, matched = end, found
                if found == self._most:
                    break
        if not matched:
            return None
        drafts = list(tokens[best : best + limit])
        for index in range(len(drafts), limit):
            drafts.append(drafts[index + best - length])  # the match reaches the end: what repeats goes on repeating
        return drafts, common_length(tokens, length, tokens, best, _EVIDENCE)

    def close(self) -> None:
        """Nothing outlives the request."""
