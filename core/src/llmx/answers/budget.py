"""A thinking budget: how long an answer may reason, and how many tokens it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmx.answers.harmony import HarmonyParser
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.reasoning_track import ReasoningTrack
from llmx.answers.thinking import span_of
from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx.structured_params import StructuredOutputsParams

__all__ = ["ReasoningCount", "with_budget"]

_FIELD = "thinking_token_budget"


def with_budget(params: SamplingParams, form: ReasoningFormat | None, prompt: str) -> SamplingParams:
    """params as an engine takes them: structured_outputs says where the reasoning is, how long it may be, and that a form begins behind it.

    form: how the model marks its reasoning; prompt: as rendered, or its end. Raises RequestError where reasoning cannot be ended.
    """
    budget = params.thinking_token_budget
    if budget is None:
        return params
    if form is None:
        why = "it is not known how this model marks its reasoning: start with --reasoning-parser NAME, or leave it out"
        raise RequestError(f"{_FIELD} is {budget}, but {why}", field=_FIELD)
    if not form.end:
        why = f"reasoning in the format {form.name} is a message of its own, which no marker ends: use reasoning_effort, or leave it out"
        raise RequestError(f"{_FIELD} is {budget}, but {why}", field=_FIELD)
    span, wanted = span_of(form, prompt), params.structured_outputs
    if span is not None:
        after = replace(span, budget=budget)
        wanted = StructuredOutputsParams(field_name=_FIELD, after=after) if wanted is None else replace(wanted, after=after)
    return replace(params, thinking_token_budget=None, structured_outputs=wanted)  # without a span the prompt has closed the reasoning


class ReasoningCount:
    """Counts the tokens of one answer's reasoning, markers left out. token_bytes: the bytes of a token id."""

    def __init__(self, form: ReasoningFormat, prompt: str, token_bytes: Callable[[int], bytes]) -> None:
        span = span_of(form, prompt)
        self._token_bytes = token_bytes
        self._track = None if span is None else ReasoningTrack(span)
        self._messages = None if form.end else HarmonyParser(prompt)
        self._taken = self._in_messages = 0

    def upto(self, token_ids: Sequence[int]) -> int:
        """Tokens of the reasoning in an answer's tokens so far; token_ids: all of them, those of the last call first."""
        for token in token_ids[self._taken :]:
            if self._track is not None and self._track.over:
                break
            self._take(self._token_bytes(token))
        self._taken = len(token_ids)
        return self._in_messages if self._track is None else self._track.tokens

    def _take(self, token: bytes) -> None:
        if self._track is not None:
            self._track.take(token)
        elif self._messages is not None:
            before = self._messages.reasons
            self._messages.feed(token.decode("latin-1"))  # only markers matter, and they are ASCII
            self._in_messages += before and self._messages.reasons
