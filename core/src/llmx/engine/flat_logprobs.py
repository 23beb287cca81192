"""FlatLogprobs: the logprobs of many places in flat lists, for callers who keep many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from llmx.engine.outputs import Logprob, TokenLogprobs

__all__ = ["FlatLogprobs"]


class FlatLogprobs(Sequence[TokenLogprobs | None]):
    """Reads like a list of TokenLogprobs. The entries of place i stand at start_indices[i] to end_indices[i] of the other lists.

    A place without entries (a prompt's first token) reads as None. A slice is a FlatLogprobs.
    """

    def __init__(self, places: Iterable[TokenLogprobs | None] = ()) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []
        self._bytes: list[bytes] = []
        for place in places:
            self.append(place)

    def append(self, place: TokenLogprobs | None) -> None:
        """Add one place at the end."""
        self.start_indices.append(len(self.token_ids))
        for one in (place or {}).values():
            self.token_ids.append(one.token_id)
            self.logprobs.append(one.logprob)
            self.ranks.append(one.rank)
            self.decoded_tokens.append(one.decoded_token)
            self._bytes.append(one.bytes)
        self.end_indices.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> TokenLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> TokenLogprobs | None | FlatLogprobs:
        if isinstance(index, slice):
            return FlatLogprobs(self[at] for at in range(*index.indices(len(self))))
        entries = [
            Logprob(self.logprobs[at], self.ranks[at], self.decoded_tokens[at], self.token_ids[at], self._bytes[at])
            for at in range(self.start_indices[index], self.end_indices[index])
        ]
        if not entries:
            return None
        ranked = sorted((one for one in entries if one.rank is not None), key=lambda one: one.rank or 0)
        return TokenLogprobs(entries[0], ranked, entries[1:])

    def __iter__(self) -> Iterator[TokenLogprobs | None]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlatLogprobs) and list(self) == list(other)
