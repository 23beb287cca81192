"""Jobs: prompts of an HTTP request, checked and ready for the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from llmx.answers.budget import ReasoningCount, with_budget
from llmx.engine.request_input import cut_prompt
from llmx.errors import PromptTooLong, RequestError
from llmx.record import record
from llmx.sampling_params import SamplingParams
from llmx_server.serving import Serving

if TYPE_CHECKING:
    from llmx.engine.async_beams import AsyncBeams
    from llmx.engine.async_engine import AsyncEngine

__all__ = ["Job", "fit", "make_job", "runner"]


@record
class Job:
    """One prompt of an HTTP request, checked and ready for the engine."""

    index: int  # of the prompt in its request
    text: str  # the prompt as text
    token_ids: list[int]
    params: SamplingParams
    request_id: str  # the engine's own id, unique
    cache_salt: str = ""
    counts_drafts: bool = False  # usage tells them
    reasoning: Callable[[], ReasoningCount] | None = None  # what counts an answer's reasoning, where usage tells it
    beams: float | None = None  # the length penalty of a beam search; None: answers are drawn


async def make_job(
    serving: Serving,
    prompt: str | list[int],
    params: SamplingParams,
    *,
    index: int = 0,
    add_special_tokens: bool,
    max_tokens_given: bool,
    cache_salt: str = "",
    beams: float | None = None,
) -> Job:
    """A Job that the engine can take. Raises RequestError for an empty or over-long prompt or a token id out of range."""
    vocab_size = serving.engine.info.vocab_size
    text: str | None = None
    if isinstance(prompt, str):
        token_ids = await serving.encode(prompt, add_special_tokens=add_special_tokens)
        text = prompt
    else:
        bad = next((token for token in prompt if not 0 <= token < vocab_size), None)
        if bad is not None:
            raise RequestError(f"prompt holds token id {str(bad)[:40]}, but the vocabulary has {vocab_size} tokens (0..{vocab_size - 1})", field="prompt")
        token_ids = prompt
    if len(cut := cut_prompt(token_ids, params, serving.engine.info.max_model_len)) < len(token_ids):
        token_ids, text = cut, None
    if not token_ids:
        raise RequestError("the prompt is empty: it must have at least one token", field="prompt")
    fitted = fit(params, len(token_ids), serving.engine.info.max_model_len, max_tokens_given=max_tokens_given)
    if text is None:
        text = serving.engine.tokenizer.decode(token_ids, skip_special_tokens=False)
    fitted = with_budget(fitted, serving.forms.reasoning, text) if fitted.thinking_token_budget is not None else fitted
    return Job(index, text, token_ids, fitted, f"req-{uuid.uuid4().hex}", cache_salt, serving.config.server.draft_usage == "summary", beams=beams)


def fit(params: SamplingParams, num_prompt_tokens: int, max_model_len: int, *, max_tokens_given: bool) -> SamplingParams:
    """params whose max_tokens fits the context. A default is lowered; what the client asked for is not: PromptTooLong."""
    room = max_model_len - num_prompt_tokens
    wanted = params.max_tokens
    if room < (0 if wanted == 0 else 1):
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens, but the context of this model is {max_model_len} tokens, the answer included: shorten the prompt",
            field="prompt",
        )
    if params.min_tokens > room:
        message = f"min_tokens is {params.min_tokens}, but after the prompt of {num_prompt_tokens} tokens only {room} fit: lower it"
        raise PromptTooLong(message, field="min_tokens")
    if wanted is None or wanted <= room:
        return params
    if max_tokens_given:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {wanted}, together {num_prompt_tokens + wanted}, but the context of this "
            f"model is {max_model_len} tokens: lower max_tokens to {room} or shorten the prompt",
            field="max_tokens",
        )
    return replace(params, max_tokens=room)


def runner(serving: Serving, job: Job) -> AsyncEngine | AsyncBeams:
    """What generates the job's answers: the engine, or a beam search on it."""
    if job.beams is None:
        return serving.engine
    from llmx.engine.async_beams import AsyncBeams  # rare: a start need not wait for it

    return AsyncBeams(serving.engine, job.beams)
