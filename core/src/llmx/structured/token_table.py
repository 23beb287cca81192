"""TokenTable of a tokenizer: what backends need of a vocabulary."""

from __future__ import annotations

import hashlib

from llmx.structured.grammar import TokenTable
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["token_table"]


def token_table(tokenizer: Tokenizer, vocab_size: int, eos_ids: tuple[int, ...]) -> TokenTable:
    """The bytes of ids 0 .. vocab_size - 1 of the model's head; ids past the tokenizer's own have none."""
    tokens = tuple(tokenizer.token_bytes(token) for token in range(vocab_size))
    special = frozenset(token for token in tokenizer.special_ids if token < vocab_size) | frozenset(eos_ids)
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(len(token).to_bytes(4, "little") + token)
    digest.update(repr((eos_ids, sorted(special))).encode())
    return TokenTable(tokens, eos_ids, special, digest.hexdigest())
