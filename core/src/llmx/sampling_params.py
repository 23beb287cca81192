"""What a user may ask of sampling, checked once, at the border.

Ranges follow the OpenAI API where it has the parameter and the field's common extensions elsewhere. A value out of range
raises RequestError that names field, value and range. NaN and infinity are never valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmx.errors import RequestError

__all__ = ["MAX_BAD_WORDS", "MAX_N", "MAX_STOP_STRINGS", "REPETITION_RANGE", "SamplingParams", "sampling_defaults"]

MAX_STOP_STRINGS = 16  # OpenAI's limit of 4 is checked by the OpenAI routes; offline use may have more
MAX_N = 128
MAX_BAD_WORDS = 128
REPETITION_RANGE = (0.01, 100.0)  # logits are divided by it: past these float32 logits overflow
_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """Sampling of one request. temperature 0 is greedy. top_k 0 or -1, top_p 1 and min_p 0 are off.

    max_tokens: new tokens at most; None: as many as the context allows.
    seed: None draws one; request i of n uses seed + i, so a seeded request with n > 1 is reproducible.
    logprobs: None off; m: the chosen token and the m most likely. prompt_logprobs: the same for the prompt's tokens.
    logit_bias: added to the raw logits, -100..100. allowed_token_ids: only these may be drawn.
    bad_words: texts that may not be generated, as the tokenizer writes them, alone and after a space; bad_word_ids: the same as token
    sequences (`llmx.engine.bad_words` makes them).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids", "bad_words"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        self._check_numbers()
        self._check_lists()

    def _check_numbers(self) -> None:
        _real("temperature", self.temperature, 0.0, 2.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, *REPETITION_RANGE)
        _whole("n", self.n, 1, MAX_N)
        _whole("top_k", self.top_k, -1, None)
        _whole("min_tokens", self.min_tokens, 0, None)
        _whole("priority", self.priority, -(2**31), 2**31 - 1)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, None)
            if self.min_tokens > self.max_tokens:
                raise RequestError(f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}: lower min_tokens", field="min_tokens")
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, None)
        if self.prompt_logprobs is not None:
            _whole("prompt_logprobs", self.prompt_logprobs, 0, None)

    def _check_lists(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(f"stop has {len(self.stop)} strings, at most {MAX_STOP_STRINGS} are allowed", field="stop")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop holds {text!r}: each stop must be a non-empty string", field="stop")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty: leave it out to allow all tokens", field="allowed_token_ids")
        for token in self.allowed_token_ids or ():
            _whole("allowed_token_ids", token, 0, None)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise RequestError(f"bad_words has {len(self.bad_words)} words, at most {MAX_BAD_WORDS} are allowed", field="bad_words")
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip():
                raise RequestError(f"bad_words holds {word!r}: each must be a string that is not blank", field="bad_words")
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, 0, None)
            _real(f"logit_bias[{token}]", bias, -100.0, 100.0)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id at or past `vocab_size`."""
        for name, ids in (("stop_token_ids", self.stop_token_ids), ("allowed_token_ids", self.allowed_token_ids or ()), ("logit_bias", tuple(self.logit_bias))):
            for token in ids:
                if token >= vocab_size:
                    raise RequestError(f"{name} holds token id {token}, but the vocabulary has {vocab_size} tokens (0..{vocab_size - 1})", field=name)

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of SamplingParams fields that a model brings in its generation_config.json; null and other entries are left out."""
    return {name: generation[name] for name in _DEFAULTED if generation.get(name) is not None}


def _real(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} is {value!r}: it must be a finite number", field=name.split("[", 1)[0])
    if value < low or value > high or (open_low and value == low):
        left = "(" if open_low else "["
        right = f"{high:g}]" if math.isfinite(high) else "inf)"
        raise RequestError(f"{name} is {value!r}: it must be in {left}{low:g}, {right}", field=name.split("[", 1)[0])


def _whole(name: str, value: Any, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}: it must be a whole number", field=name)
    if value < low or (high is not None and value > high):
        limit = f"in {low}..{high}" if high is not None else f"at least {low}"
        raise RequestError(f"{name} is {value!r}: it must be {limit}", field=name)
