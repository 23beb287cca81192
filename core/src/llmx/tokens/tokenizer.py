"""Tokenizer: text to token ids and back, with the exact bytes of every token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from llmx.errors import RequestError
from llmx.tokens.byte_level import spell
from llmx.tokens.from_directory import vocabulary_from_directory
from llmx.tokens.from_gguf import vocabulary_from_gguf
from llmx.tokens.source import TokenizerSource
from llmx.tokens.texts import encode_texts
from llmx.tokens.vocabulary import Vocabulary

__all__ = ["Tokenizer"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_LONG_TEXT = 1000  # characters: 0.3 ms


class Tokenizer:
    """A model's tokenizer. Safe to use from several threads: encoding keeps no state, and a cache slot is filled with one value only.

    vocab_size: ids are 0 <= id < vocab_size; a model's table may be longer (padding rows), such ids stand for no bytes.
    eos_ids: every id that ends a generation. bos_id: None without one. names: texts of bos_token, eos_token, ... for templates.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backend = vocabulary.backend
        self.vocab_size: int = vocabulary.size
        self.eos_ids: tuple[int, ...] = vocabulary.eos_ids
        self.bos_id: int | None = vocabulary.bos_id
        self.names: Mapping[str, str] = vocabulary.names
        self.special_ids: frozenset[int] = vocabulary.special_ids
        self.strips_leading_space: bool = vocabulary.strip_space
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self.add_bos: bool = self._adds_bos()

    @classmethod
    def load(cls, source: TokenizerSource) -> Tokenizer:
        """The tokenizer of a model. Raises ModelError naming the file and the reason."""
        return cls(vocabulary_from_directory(source) if source.gguf is None else vocabulary_from_gguf(source))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised.

        add_special_tokens: also BOS (and EOS) where the model wants them; False for rendered chat templates, which write their own.
        Raises RequestError for a text that is not Unicode (lone surrogates).
        """
        vocabulary = self._vocabulary
        library_adds = add_special_tokens and vocabulary.add_bos is None and vocabulary.add_eos is None
        try:
            ids = self._ids(text, library_adds)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError("the text is not valid Unicode: it contains lone surrogates") from error
        if not add_special_tokens or library_adds:
            return ids
        head = [self.bos_id] if vocabulary.add_bos and self.bos_id is not None else []
        tail = [self.eos_ids[0]] if vocabulary.add_eos and self.eos_ids else []
        return [*head, *ids, *tail]

    def encode_texts(
        self, text: str, pair: str | None = None, *, most: int | None = None, side: Literal["left", "right"] = "right", each: tuple[int, int] = (0, 0)
    ) -> tuple[list[int], int]:
        """(token ids with special tokens, where the second text begins by token type or -1): as models of the BERT family read them.

        most: tokens in all, each: of either text (0: no limit); what is longer is cut at `side`, special tokens stay. Raises RequestError as `encode` does.
        """
        if pair is None and (self._vocabulary.add_bos is not None or self._vocabulary.add_eos is not None):
            ids = self.encode(text)
            return (ids if most is None else ids[:most] if side == "right" else ids[-most:]), -1
        return encode_texts(self._vocabulary, text, pair, most, side, each)

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < _LONG_TEXT:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            return ids
        # `encode` holds the interpreter lock to its end; a batch, even of one, lets it go, and this one records no offsets
        ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True, *, at_start: bool = True) -> str:
        """Text of the ids, bytes that are no UTF-8 as U+FFFD; nothing is cleaned up.

        at_start: the ids begin a text, so a leading space that the encoder put there is dropped; False: they continue one.
        Equals the concatenation of a Detokenizer's deltas with the same arguments.
        """
        pieces = [self.token_bytes(token) for token in ids if not (skip_special_tokens and token in self.special_ids)]
        data = b"".join(pieces)
        if at_start and self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Exact bytes of one token, a leading space included; b"" for an id without text. Raises IndexError for a negative id."""
        if token >= self.vocab_size:
            return b""
        if token < 0:
            raise IndexError(f"token id {token} is negative")
        found = self._bytes[token]
        if found is None:
            found = self._bytes[token] = self._spell(token)
        return found

    def token_text(self, token: int) -> str:
        """One token decoded alone; U+FFFD where it is a part of a character."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def token_id(self, text: str) -> int | None:
        """Id of the token that the vocabulary writes as `text`, None without one."""
        found: int | None = self._backend.token_to_id(text)
        return found

    def is_special(self, token: int) -> bool:
        """True for control tokens (BOS, EOS, chat markers): no part of the text."""
        return token in self.special_ids

    def decode_each(self, ids: Iterable[int]) -> list[str]:
        """Text of each token alone."""
        return [self.token_text(token) for token in ids]

    def _spell(self, token: int) -> bytes:
        text = self._backend.id_to_token(token)
        if text is None:
            return b""
        vocabulary = self._vocabulary
        if token in vocabulary.added_ids:
            return str(text).encode()
        if vocabulary.style == "byte_level":
            return spell(text)
        if vocabulary.style == "wordpiece":
            return text[2:].encode() if text.startswith("##") else f" {text}".encode()
        if vocabulary.byte_ids is None or token in vocabulary.byte_ids:
            match = _BYTE_TOKEN.fullmatch(text)
            if match is not None:
                return bytes([int(match[1], 16)])
        return str(text).replace("▁", " ").encode()

    def _adds_bos(self) -> bool:
        if self._vocabulary.add_bos is not None:
            return self._vocabulary.add_bos and self.bos_id is not None
        return self.bos_id is not None and self.encode("", add_special_tokens=True)[:1] == [self.bos_id]
