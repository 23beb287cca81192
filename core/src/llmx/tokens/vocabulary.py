"""Vocabulary: a tokenizer of the `tokenizers` library and what must be known beside it, however it was read."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import tokenizers

from llmx.record import record

__all__ = ["Vocabulary"]


@record
class Vocabulary:
    """What the readers of GGUF metadata and of tokenizer.json hand to Tokenizer.

    size: one more than the largest id.
    style: how a token's text stands for bytes: byte_level (one character per byte), sentencepiece ("▁" is a space, <0xNN> a byte),
    wordpiece ("##" continues a word; others begin one, with the space before it).
    strip_space: a text that starts with a space is decoded without it (it was put there by the encoder).
    add_bos, add_eos: what encode adds; None: as the library's own post-processor does.
    """

    backend: tokenizers.Tokenizer
    size: int
    style: Literal["byte_level", "sentencepiece", "wordpiece"]
    strip_space: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    special_ids: frozenset[int] = frozenset()
    added_ids: frozenset[int] = frozenset()  # matched whole in the text and written as plain text; special ones included
    byte_ids: frozenset[int] | None = None  # sentencepiece: ids of <0xNN> tokens; None: by their spelling
    add_bos: bool | None = None
    add_eos: bool | None = None
    names: dict[str, str] = field(default_factory=dict)  # texts of bos_token, eos_token, ... for chat templates
