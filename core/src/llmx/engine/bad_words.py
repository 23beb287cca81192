"""bad_words as token sequences: an engine knows no text, so whoever has the tokenizer writes them before a request is sent."""

from __future__ import annotations

from dataclasses import replace

from llmx.sampling_params import SamplingParams
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["with_bad_word_ids"]


def with_bad_word_ids(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """params with bad_word_ids: each word alone and after a space, as the tokenizer writes it; params itself when there are none.

    A word that the model spells with other tokens than the tokenizer would is not found.
    """
    if not params.bad_words:
        return params
    texts = [text for word in params.bad_words for text in (word.lstrip(), " " + word.lstrip())]
    words = dict.fromkeys(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return replace(params, bad_word_ids=(*params.bad_word_ids, *words))
