"""POST /v1/completions: the request, and its answers as plain objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.engine.outputs import CompletionOutput
from llmx.errors import RequestError
from llmx.sampling_params import MAX_N, SamplingParams
from llmx_server.body import shorten, whole
from llmx_server.protocol.sampling import SamplingFields, within_logprob_limit

__all__ = ["DEFAULT_MAX_TOKENS", "MAX_PROMPTS", "CompletionRequest", "completion_choice"]

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for this route
MAX_PROMPTS = 1024


class CompletionRequest(SamplingFields):
    """A body of /v1/completions."""

    prompt: Any
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool = True

    def prompts(self) -> list[str | list[int]]:
        """Each prompt as text or as token ids. Raises RequestError for any other shape and for an empty one."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not isinstance(prompt, list) or not prompt:
            shapes = "a string, a list of strings, a list of token ids or a list of such lists"
            raise RequestError(f"prompt is {shorten(prompt)}: it must be {shapes}", field="prompt")
        if type(whole(prompt[0])) is int:
            return [_token_ids(prompt, "prompt")]
        if len(prompt) > MAX_PROMPTS:
            raise RequestError(f"prompt has {len(prompt)} prompts: at most {MAX_PROMPTS} are allowed in one request", field="prompt")
        if isinstance(prompt[0], str):
            for index, item in enumerate(prompt):
                if not isinstance(item, str):
                    raise RequestError(f"prompt[{index}] is {shorten(item)}: the others are strings, so it must be one too", field="prompt")
            return list(prompt)
        return [_token_ids(item, f"prompt[{index}]") for index, item in enumerate(prompt)]

    @property
    def choices(self) -> int:
        """Choices that each prompt gets; with best_of more are generated."""
        return 1 if self.n is None else self.n

    def params(self, vocab_size: int, defaults: Mapping[str, Any]) -> SamplingParams:
        """The sampling parameters, with n as many answers as are generated; `defaults` are the model's own. Raises RequestError."""
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if max_tokens < 1 and not (self.echo and max_tokens == 0):
            raise RequestError(f"max_tokens is {max_tokens}: it must be at least 1 (0 is allowed with echo, to score a prompt)", field="max_tokens")
        logprobs = None if self.logprobs is None else within_logprob_limit("logprobs", self.logprobs)
        prompt_logprobs = self.wanted_prompt_logprobs()
        if self.echo and logprobs is not None:
            prompt_logprobs = max(logprobs, prompt_logprobs or 0)
        if self.max_tokens is None and self.min_tokens is not None and self.min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens} but max_tokens is {max_tokens} by default: set max_tokens", field="min_tokens")
        params = self.sampling(vocab_size, defaults, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        return self._widened(params)

    def _widened(self, params: SamplingParams) -> SamplingParams:
        """params for best_of answers; their logprobs are what the best are chosen by."""
        best_of, n = self.best_of, self.choices
        if best_of is None or best_of == n:
            return params
        if best_of < n:
            raise RequestError(f"best_of is {best_of} and n is {n}: it must not be less than n", field="best_of")
        if best_of > MAX_N:
            raise RequestError(f"best_of is {best_of}: it must be at most {MAX_N}", field="best_of")
        if self.stream:
            raise RequestError(f"best_of is {best_of} with stream: the best are known at the end only, set stream to false", field="best_of")
        return replace(params, n=best_of, logprobs=params.logprobs or 0)

    def best(self, answers: list[CompletionOutput]) -> list[CompletionOutput]:
        """The `choices` answers with the highest mean logprob, best first; all, as they are, without best_of. Beams come with the best first."""
        if len(answers) <= self.choices or self.use_beam_search:
            return answers[: self.choices]
        ranked = sorted(answers, key=lambda answer: (answer.cumulative_logprob or 0.0) / max(len(answer.token_ids), 1), reverse=True)
        return [replace(answer, index=index) for index, answer in enumerate(ranked[: self.choices])]


def completion_choice(index: int, text: str, logprobs: dict[str, Any] | None, answer: CompletionOutput) -> dict[str, Any]:
    """One finished choice."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }


def _token_ids(items: Any, place: str) -> list[int]:
    if not isinstance(items, list):
        raise RequestError(f"{place} is {shorten(items)}: it must be a list of token ids", field="prompt")
    ids = [whole(item) for item in items]
    for index, item in enumerate(ids):
        if type(item) is not int:
            raise RequestError(f"{place}[{index}] is {shorten(item)}: a token id must be a whole number", field="prompt")
    return ids
