"""TextLogprobs: which tokens make up a stretch of an answer's text, for logprobs that stand beside that text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from llmx.engine.outputs import TokenLogprobs
from llmx_server.protocol.logprobs import chat_logprobs

__all__ = ["TextLogprobs"]


class TextLogprobs:
    """Stretches are asked for in their order. num_top: most likely tokens beside each token."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._ends: list[int] = []  # per token, where it ends in the text
        self._entries: Sequence[TokenLogprobs] = ()
        self._at = self._given = 0

    def update(self, entries: Sequence[TokenLogprobs]) -> None:
        """All tokens so far."""
        self._entries = entries
        for entry in entries[len(self._ends) :]:
            self._text += self._decoder.decode(entry.token.bytes)
            self._ends.append(len(self._text))

    def take(self, text: str) -> list[dict[str, Any]]:
        """The tokens of the next stretch that reads `text`; each token is given once. None where the text is not what the tokens spell."""
        begin = self._text.find(text, self._at)
        if begin < 0:
            return []
        self._at = end = begin + len(text)
        first = self._given
        while first < len(self._ends) and self._ends[first] <= begin:
            first += 1
        last = first
        while last < len(self._ends) and (self._ends[last - 1] if last else 0) < end:
            last += 1
        self._given = last
        return list(chat_logprobs(self._entries[first:last], self._num_top)["content"])
