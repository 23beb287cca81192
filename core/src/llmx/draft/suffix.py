"""SuffixDrafter: what most often followed the longest run of last tokens, in this request and in recent ones.

Source of the idea: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (2024). Here runs are found through
chains of their ends instead of suffix trees, so that a token of memory costs one dictionary entry.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from llmx.draft.settings import number, whole_number
from llmx.draft.token_index import TOKEN_BITS, TokenIndex, common_length

__all__ = ["SUFFIX_SETTINGS", "Recent", "SuffixDrafter"]

SUFFIX_SETTINGS = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)
_RUN = 2  # equal tokens that a guess needs at least
_CANDIDATES = 24  # places compared per guess and store
_STORE_TOKENS = 1 << 17  # tokens of recent requests that are kept, about 20 MB
_GROW = 2048  # tokens of recent requests that are indexed between two steps
_END = (1 << TOKEN_BITS) - 1  # stands between two requests


class Recent:
    """Tokens of recent requests in two generations: when the young one is full the old one is forgotten."""

    def __init__(self, max_requests: int, max_tokens: int = _STORE_TOKENS) -> None:
        self._limits = -(-max_requests // 2), max_tokens // 2
        self._stores = [_Store(), _Store()]

    @property
    def num_tokens(self) -> int:
        """Tokens kept."""
        return sum(len(store.tokens) for store in self._stores)

    def add(self, tokens: Sequence[int]) -> None:
        """Keep the end of an ended request, as much as a generation may hold."""
        requests, most = self._limits
        if not requests:
            return
        young, kept = self._stores[0], tokens[-(most - 1) :]
        if young.requests >= requests or len(young.tokens) + len(kept) + 1 > most:
            self._stores = [_Store(), young]
            young = self._stores[0]
        young.tokens.extend(kept)
        young.tokens.append(_END)
        young.requests += 1

    def places(self, last: Sequence[int]) -> list[tuple[Sequence[int], int]]:
        """(tokens, index behind the run) of runs that equal `last`, the latest first."""
        found: list[tuple[Sequence[int], int]] = []
        for store in self._stores:
            store.index.grow(_GROW)
            found += [(store.tokens, end) for end in islice(store.index.ends(last), _CANDIDATES - len(found))]
        return found


class _Store:
    def __init__(self) -> None:
        self.tokens = array("i")
        self.index = TokenIndex(self.tokens, _RUN)
        self.requests = 0


class SuffixDrafter:
    """settings: see SUFFIX_SETTINGS; they mean what they mean in Arctic Inference and vLLM. Raises ConfigError."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        depth = whole_number(settings, "suffix_decoding_max_tree_depth", _RUN, 128)
        requests = whole_number(settings, "suffix_decoding_max_cached_requests", 0, 1_000_000)
        factor = number(settings, "suffix_decoding_max_spec_factor", 0.1, 100.0)
        chance = number(settings, "suffix_decoding_min_token_prob", 0.0, 1.0)
        self.depth = 24 if depth is None else depth
        self.factor = 1.0 if factor is None else factor
        self.chance = 0.1 if chance is None else chance
        self.recent = Recent(10_000 if requests is None else requests)

    def begin(self, tokens: Sequence[int], *, private: bool) -> _Proposer:
        """A private request looks into itself only, and is not kept."""
        return _Proposer(self, tokens, None if private else self.recent)


class _Proposer:
    def __init__(self, drafter: SuffixDrafter, tokens: Sequence[int], recent: Recent | None) -> None:
        self._drafter, self._tokens, self._recent = drafter, tokens, recent
        self._index = TokenIndex(tokens, _RUN)
        self._indexed = 0

    def propose(self, limit: int) -> tuple[list[int], int] | None:
        """Of the places with the longest match, token by token what most of them go on with, while that is likely enough."""
        drafter, tokens, length = self._drafter, self._tokens, len(self._tokens)
        self._index.grow(length - 1 - self._indexed)  # the last token ends the run that is looked for
        self._indexed = max(length - 1, 0)
        if length < _RUN:
            return None
        last = tokens[length - _RUN :]
        places: list[tuple[Sequence[int], int]] = [(tokens, end) for end in islice(self._index.ends(last), _CANDIDATES)]
        if self._recent is not None:
            places += self._recent.places(last)
        if not places:
            return None
        matched = [common_length(tokens, length, place, end, drafter.depth) for place, end in places]
        longest = max(matched)
        best = [place for place, found in zip(places, matched, strict=True) if found == longest]
        drafts = self._follow(best, min(limit, max(1, int(drafter.factor * longest))))
        return (drafts, longest) if drafts else None

    def _follow(self, places: list[tuple[Sequence[int], int]], limit: int) -> list[int]:
        drafts: list[int] = []
        chance = 1.0
        while len(drafts) < limit and places:
            votes = Counter(_at(place, end + len(drafts), drafts) for place, end in places)
            token, count = votes.most_common(1)[0]  # of equally frequent ones the one that was seen last
            chance *= count / len(places)
            if token == _END or chance < self._drafter.chance:
                break
            places = [(place, end) for place, end in places if _at(place, end + len(drafts), drafts) == token]
            drafts.append(token)
        return drafts

    def close(self) -> None:
        """Keep the request for those that come."""
        if self._recent is not None:
            self._recent.add(self._tokens)


def _at(tokens: Sequence[int], index: int, drafts: list[int]) -> int:
    """The token at an index; behind the end of a sequence its own drafts follow, so that what repeats goes on repeating."""
    return tokens[index] if index < len(tokens) else drafts[index - len(tokens)]
