"""POST /v1/completions: the request, and its answers as plain objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.engine.outputs import CompletionOutput
from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx_server.body import shorten
from llmx_server.protocol.sampling import SamplingFields, within_logprob_limit

__all__ = ["DEFAULT_MAX_TOKENS", "MAX_PROMPTS", "CompletionRequest", "completion", "completion_choice"]

DEFAULT_MAX_TOKENS = 16  # OpenAI's default for this route
MAX_PROMPTS = 1024


class CompletionRequest(SamplingFields):
    """A body of /v1/completions."""

    prompt: Any
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None
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
        if type(prompt[0]) is int:
            return [_token_ids(prompt, "prompt")]
        if len(prompt) > MAX_PROMPTS:
            raise RequestError(f"prompt has {len(prompt)} prompts: at most {MAX_PROMPTS} are allowed in one request", field="prompt")
        if isinstance(prompt[0], str):
            for index, item in enumerate(prompt):
                if not isinstance(item, str):
                    raise RequestError(f"prompt[{index}] is {shorten(item)}: the others are strings, so it must be one too", field="prompt")
            return list(prompt)
        return [_token_ids(item, f"prompt[{index}]") for index, item in enumerate(prompt)]

    def params(self, vocab_size: int, defaults: Mapping[str, Any]) -> SamplingParams:
        """The sampling parameters; `defaults` are the model's own. Raises RequestError."""
        if self.suffix:
            raise RequestError("suffix is set: fill-in-the-middle is not supported, leave it out", field="suffix")
        n = 1 if self.n is None else self.n
        if self.best_of is not None and self.best_of != n:
            reason = "it must not be less than n" if self.best_of < n else "choosing the best of more than n is not supported, set it to n"
            raise RequestError(f"best_of is {self.best_of} and n is {n}: {reason}", field="best_of")
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if max_tokens < 1 and not (self.echo and max_tokens == 0):
            raise RequestError(f"max_tokens is {max_tokens}: it must be at least 1 (0 is allowed with echo, to score a prompt)", field="max_tokens")
        logprobs = None if self.logprobs is None else within_logprob_limit("logprobs", self.logprobs)
        prompt_logprobs = self.wanted_prompt_logprobs()
        if self.echo and logprobs is not None:
            prompt_logprobs = max(logprobs, prompt_logprobs or 0)
        if self.max_tokens is None and self.min_tokens is not None and self.min_tokens > max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens} but max_tokens is {max_tokens} by default: set max_tokens", field="min_tokens")
        return self.sampling(vocab_size, defaults, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs)


def completion_choice(index: int, text: str, logprobs: dict[str, Any] | None, answer: CompletionOutput | None) -> dict[str, Any]:
    """One choice; `answer` gives how it ended, None: it goes on (a chunk of a stream)."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason if answer else None,
        "stop_reason": answer.stop_reason if answer else None,
    }


def completion(head: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    """A whole response."""
    return {**head, "choices": choices, "usage": usage}


def _token_ids(items: Any, place: str) -> list[int]:
    if not isinstance(items, list):
        raise RequestError(f"{place} is {shorten(items)}: it must be a list of token ids", field="prompt")
    for index, item in enumerate(items):
        if type(item) is not int:
            raise RequestError(f"{place}[{index}] is {shorten(item)}: a token id must be a whole number", field="prompt")
    return items
