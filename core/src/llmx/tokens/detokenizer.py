"""Detokenizer: the text of a growing token sequence, piece by piece, never half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from llmx.tokens.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Turns the tokens of one sequence into text deltas; constant work per token.

    The concatenation of all deltas and of `flush()` equals `tokenizer.decode` of all ids with the same arguments. Bytes that begin
    a character wait for the rest of it; bytes that can be no UTF-8 become U+FFFD as soon as that is certain.
    at_start: as in Tokenizer.decode; False, because generated tokens continue a prompt.
    spaces_between_special_tokens False: a special token that follows another is written without the space it begins with.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, at_start: bool = False, spaces_between_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._strip = at_start and tokenizer.strips_leading_space
        self._joined = frozenset() if spaces_between_special_tokens else tokenizer.special_ids
        self._after_special = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """Text that became certain with this token; often "" for a part of a character or a special token."""
        if token in self._skipped:
            return ""
        data = self._tokenizer.token_bytes(token)
        if self._joined:
            special = token in self._joined
            data = data.removeprefix(b" ") if special and self._after_special else data
            self._after_special = special
        if self._strip and data:
            data, self._strip = data.removeprefix(b" "), False
        return self._decoder.decode(data)

    def extend(self, tokens: Iterable[int]) -> str:
        """Text that became certain with these tokens."""
        return "".join([self.add(token) for token in tokens])

    @property
    def pending(self) -> int:
        """Bytes of a character that is not complete yet, 0 to 3."""
        return len(self._decoder.getstate()[0])

    def flush(self) -> str:
        """What is left at the end: "", or one U+FFFD for a character that was cut off. The sequence has ended after this."""
        return self._decoder.decode(b"", final=True)
