"""Logprobs in the three shapes that clients know: chat, legacy completions, and per prompt token."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llmx.engine.outputs import Logprob, TokenLogprobs

__all__ = ["LOGPROB_FLOOR", "LegacyLogprobs", "chat_logprobs", "prompt_logprobs"]

LOGPROB_FLOOR = -9999.0  # stands for minus infinity (a masked token), which JSON cannot hold


def chat_logprobs(entries: Iterable[TokenLogprobs], num_top: int, *, as_ids: bool = False, asked: Sequence[int] = ()) -> dict[str, Any]:
    """The `logprobs` object of a chat choice: one entry per token, with it the `num_top` most likely ones and those `asked` for by id.

    as_ids: tokens are named token_id:N.
    """
    content = [{**_chat_token(entry.token, as_ids), "top_logprobs": [_chat_token(one, as_ids) for one in _beside(entry, num_top, asked)]} for entry in entries]
    return {"content": content, "refusal": None}


def prompt_logprobs(entries: list[TokenLogprobs | None] | None, num_top: int) -> list[dict[str, Any] | None] | None:
    """Per prompt token {token id: {logprob, rank, decoded_token}}, the token itself and the num_top most likely; the first has none."""
    if entries is None:
        return None
    return [None if entry is None else {str(one.token_id): _ranked(one) for one in (entry.token, *entry.top[:num_top])} for entry in entries]


class LegacyLogprobs:
    """Builds the `logprobs` objects of one completion choice, whole or chunk by chunk.

    text_offset counts characters from the start of the prompt, as OpenAI does, whether the prompt is echoed or not. A
    token that begins inside a character has the offset of that character. is_shown tells whether a token is part of the text.
    as_ids: tokens are named token_id:N. asked: ids whose logprobs stand beside the most likely ones.
    """

    def __init__(self, num_top: int, start: int, is_shown: Callable[[Logprob], bool], *, as_ids: bool = False, asked: Sequence[int] = ()) -> None:
        self._num_top, self._asked = num_top, asked
        self._name = _id_name if as_ids else _legacy_name
        self._offset = start
        self._is_shown = is_shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, entries: Iterable[TokenLogprobs]) -> dict[str, Any]:
        """The object for the next tokens."""
        return self._build([(entry.token, entry) for entry in entries])

    def add_prompt(self, tokens: list[Logprob], entries: list[TokenLogprobs | None]) -> dict[str, Any]:
        """The object for the prompt's tokens, to be called first; where nothing precedes a token its logprob is null."""
        self._offset = 0
        return self._build(list(zip(tokens, entries, strict=True)))

    def _build(self, pairs: list[tuple[Logprob, TokenLogprobs | None]]) -> dict[str, Any]:
        tokens, logprobs, tops, offsets = [], [], [], []
        for token, entry in pairs:
            tokens.append(self._name(token))
            logprobs.append(None if entry is None else _finite(entry.token.logprob))
            tops.append(None if entry is None else self._top(entry))
            offsets.append(self._offset)
            if self._is_shown(token):
                self._offset += len(self._decoder.decode(token.bytes))
        return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops if self._num_top or self._asked else None, "text_offset": offsets}

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        top = {self._name(one): _finite(one.logprob) for one in _beside(entry, self._num_top, self._asked)}
        top.setdefault(self._name(entry.token), _finite(entry.token.logprob))
        return top


def _beside(entry: TokenLogprobs, num_top: int, asked: Sequence[int]) -> list[Logprob]:
    top = entry.top[:num_top]
    shown = {one.token_id for one in top}
    return top + [entry[token] for token in asked if token in entry and token not in shown]


def _chat_token(one: Logprob, as_ids: bool) -> dict[str, Any]:
    return {"token": _id_name(one) if as_ids else one.decoded_token, "logprob": _finite(one.logprob), "bytes": list(one.bytes)}


def _ranked(one: Logprob) -> dict[str, Any]:
    return {"logprob": _finite(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}


def _id_name(one: Logprob) -> str:
    return f"token_id:{one.token_id}"


def _legacy_name(one: Logprob) -> str:
    """A token's text, or OpenAI's `bytes:\\x..` form for a part of a character: those would all read U+FFFD."""
    try:
        return one.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.bytes)


def _finite(value: float) -> float:
    return value if math.isfinite(value) and value > LOGPROB_FLOOR else LOGPROB_FLOOR
