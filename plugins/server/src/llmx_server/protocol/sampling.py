"""The fields that completions and chat completions share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmx.errors import RequestError
from llmx.sampling_params import SamplingParams
from llmx_server.body import BodyModel, shorten
from llmx_server.protocol.structured import structured_params

__all__ = ["MAX_LOGPROBS", "MAX_STOPS", "SamplingFields", "checked_request_id", "checked_salt", "within_logprob_limit"]

MAX_LOGPROBS = 20  # OpenAI's limit for top_logprobs
MAX_STOPS = 4  # OpenAI's limit for stop
MAX_SALT = 128

_TOKEN_ID = re.compile(r"[0-9]{1,18}")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_TIERS = ("auto", "default", "flex", "scale", "priority")
_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop_token_ids",
    "allowed_token_ids",
    "bad_words",
    "logprob_token_ids",
    "ignore_eos",
    "min_tokens",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "priority",
    "thinking_token_budget",
    "logits_processors",
)


def checked_salt(salt: str | None) -> str:
    """A cache_salt, "" for none. Raises RequestError for one that is too long."""
    if len(salt or "") > MAX_SALT:
        raise RequestError(f"cache_salt has {len(salt or '')} characters: at most {MAX_SALT} are allowed", field="cache_salt")
    return salt or ""


def checked_request_id(name: str) -> str:
    """A request_id. Raises RequestError for one that is no name."""
    if not _REQUEST_ID.fullmatch(name):
        raise RequestError(f"request_id is {shorten(name)}: it must be 1 to 128 printable ASCII characters", field="request_id")
    return name


class SamplingFields(BodyModel):
    """Fields with the same meaning on both routes. null is the same as absent; types are strict (no "1" for 1)."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    max_tokens: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    logit_bias: dict[str, float] | None = None
    thinking_token_budget: int | None = None
    logits_processors: list[str | dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    echo: bool = False
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    service_tier: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    stream_interval: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def sampling(
        self, vocab_size: int, defaults: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None
    ) -> SamplingParams:
        """The request's SamplingParams, checked against the vocabulary. Raises RequestError naming the field at fault.

        defaults: of the model, for fields that the request leaves out.
        """
        given = dict(defaults) | {name: value for name in _SAME_NAME if (value := getattr(self, name)) is not None}
        if self.top_k is not None and self.top_k >= vocab_size:
            given["top_k"] = 0  # as many as there are: off, and small enough for any executor's integers
        stop = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        if len(stop) > MAX_STOPS:
            raise RequestError(f"stop has {len(stop)} strings: at most {MAX_STOPS} are allowed", field="stop")
        params = SamplingParams(
            **given,
            stop=tuple(stop),
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logit_bias=_logit_bias(self.logit_bias or {}),
            structured_outputs=structured_params(self.response_format, self.structured_outputs),
        )
        params.check_vocabulary(vocab_size)
        return params

    def salt(self) -> str:
        """What keeps this request's prefix-cache entries apart from others', "" for none. Raises RequestError when it is too long."""
        return checked_salt(self.cache_salt)

    def head_fields(self) -> dict[str, Any]:
        """What the request says about its answer's head: {"request_id": ...} and {"service_tier": ...} where given. Raises RequestError."""
        fields = {}
        if self.request_id is not None:
            fields["request_id"] = checked_request_id(self.request_id)
        if self.service_tier is not None:
            if self.service_tier not in _TIERS:
                raise RequestError(f"service_tier is {shorten(self.service_tier)}: it must be one of {', '.join(_TIERS)}", field="service_tier")
            fields["service_tier"] = "default"
        return fields

    def without_effect(self) -> list[str]:
        """Phrases for the Warning header: values that are taken and change nothing."""
        phrases = [f"stream_options.{name[:40]} (unknown)" for name in (self.stream_options or {}) if name not in _STREAM_OPTIONS]
        if (self.stream_options or {}).get("include_obfuscation"):
            phrases.append("stream_options.include_obfuscation (chunks are not padded)")
        if self.service_tier not in (None, "auto", "default"):
            phrases.append("service_tier (there is one tier only)")
        return phrases

    def usage_in_stream(self) -> tuple[bool, bool]:
        """(a usage chunk at the end, usage so far in every chunk). Raises RequestError for stream options that make no sense."""
        if self.stream_interval is not None and self.stream_interval < 1:
            raise RequestError(f"stream_interval is {self.stream_interval}: it must be at least 1", field="stream_interval")
        if self.stream_options is None:
            return False, False
        if not self.stream:
            raise RequestError("stream_options is set but stream is not true: leave stream_options out or set stream to true", field="stream_options")
        for name, value in self.stream_options.items():
            if name in _STREAM_OPTIONS and not isinstance(value, bool | None):
                raise RequestError(f"stream_options.{name} is {shorten(value)}: it must be true or false", field="stream_options")
        at_end, in_each = bool(self.stream_options.get("include_usage")), bool(self.stream_options.get("continuous_usage_stats"))
        if in_each and not at_end:
            raise RequestError("stream_options.continuous_usage_stats is true without include_usage: set include_usage too", field="stream_options")
        return at_end, in_each

    def wanted_prompt_logprobs(self) -> int | None:
        """prompt_logprobs within its limits. Raises RequestError when it is asked for in a stream."""
        if self.prompt_logprobs is None:
            return None
        if self.stream:
            raise RequestError("prompt_logprobs is set with stream: they are not streamed, set stream to false", field="prompt_logprobs")
        return within_logprob_limit("prompt_logprobs", self.prompt_logprobs)


_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def within_logprob_limit(name: str, value: int) -> int:
    """`value` when it is in 0..MAX_LOGPROBS. Raises RequestError otherwise."""
    if not 0 <= value <= MAX_LOGPROBS:
        raise RequestError(f"{name} is {value}: it must be in 0..{MAX_LOGPROBS}", field=name)
    return value


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    biases = {}
    for key, bias in given.items():
        if not _TOKEN_ID.fullmatch(key):
            raise RequestError(f"logit_bias has the key {shorten(key)}: keys are token ids, written as whole numbers from 0", field="logit_bias")
        biases[int(key)] = bias
    return biases
