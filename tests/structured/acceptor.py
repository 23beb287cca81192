"""Literal texts put to compiled grammars."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmx.structured import TokenTable, mask_words
from llmx.structured.manager import Grammars
from llmx.structured_params import StructuredOutputsParams

__all__ = ["Accepts", "acceptor"]

Accepts = Callable[[StructuredOutputsParams, str], bool]


def acceptor(grammars: Grammars, table: TokenTable) -> Accepts:
    """accepts(params, text): the grammar takes the whole text, byte by byte, and may end there. Raises GrammarError when it does not compile."""
    ids = {token: index for index, token in reversed(list(enumerate(table.tokens))) if len(token) == 1 and index not in table.special_ids}

    def accepts(params: StructuredOutputsParams, text: str) -> bool:
        ready = grammars.get(params)
        matcher = ready.compiled.matcher()
        mask = np.zeros((1, mask_words(len(table.tokens))), np.uint32)
        ready.backend.fill([matcher], [[ids[bytes([byte])] for byte in text.encode()]], [0], mask)
        eos = table.eos_ids[0]
        return matcher.error is None and bool(mask[0, eos >> 5] >> (eos & 31) & 1)

    return accepts
