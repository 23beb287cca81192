"""What a user may ask of sampling, checked once, at the border.

Ranges follow the OpenAI API where it has the parameter and the field's common extensions elsewhere. A value out of range
raises RequestError that names field, value and range. NaN and infinity are never valid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from llmx.errors import RequestError
from llmx.record import record
from llmx.structured_params import StructuredOutputsParams

__all__ = [
    "BeamSearchParams",
    "GENERATION_DEFAULTS",
    "LogitsProcessorParams",
    "MAX_ASKED_IDS",
    "MAX_BAD_WORDS",
    "MAX_LOGITS_PROCESSORS",
    "MAX_N",
    "MAX_STOP_STRINGS",
    "REFUSED_FIELDS",
    "REPETITION_RANGE",
    "RequestOutputKind",
    "SamplingParams",
    "sampling_defaults",
]

MAX_STOP_STRINGS = 16  # OpenAI's limit of 4 is checked by the OpenAI routes; offline use may have more
MAX_N = 128
MAX_BAD_WORDS = 128
MAX_LOGITS_PROCESSORS = 8
MAX_ASKED_IDS = 128  # logprob_token_ids
REPETITION_RANGE = (0.01, 100.0)  # logits are divided by it: past these float32 logits overflow
GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")  # what a generation_config.json may set
REFUSED_FIELDS = {  # fields that are known elsewhere and have no meaning here yet, with what to do instead
    "extra_args": "nothing here reads them; arguments of a logits processor stand beside its name in logits_processors",
    "prompt_logprob_token_ids": "prompt_logprobs=-1 gives every token's",
    "prompt_logprob_start": "cut the list of prompt_logprobs instead",
    "trace_decode_token_ids": "give the tokens as the prompt and ask for prompt_logprobs",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "watermarking": "watermarks are not supported",
}


class RequestOutputKind(IntEnum):
    """What each output of a stream holds: everything so far, only what is new, or nothing until the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@record
class LogitsProcessorParams:
    """A logits processor that a plugin registered (the hook llmx_logits_processors), with its arguments for one request."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SamplingParams:
    """Sampling of one request. temperature 0 is greedy. top_k 0 or -1, top_p 1 and min_p 0 are off.

    Fields may be changed until the request is made: the engine takes a checked copy.

    max_tokens: new tokens at most; None: as many as the context allows.
    seed: None (or -1) draws one; request i of n uses seed + i, so a seeded request with n > 1 is reproducible.
    logprobs: None off; m: the chosen token and the m most likely; -1: every token. prompt_logprobs: the same for the prompt's
    tokens. logprob_token_ids: also these tokens', with logprobs. flat_logprobs: both lists as one FlatLogprobs.
    logit_bias: added to the raw logits, -100..100. allowed_token_ids: only these may be drawn. bad_words: texts that
    may not be generated, as the tokenizer writes them, alone and after a space; bad_word_ids: the same as token sequences
    (`llmx.engine.bad_words` makes them).
    truncate_prompt_tokens: at most this many tokens of the prompt are used, -1: as many as fit; truncation_side says which
    end is cut, by default the left. detokenize False: no text, tokens only.
    thinking_token_budget: tokens that the model may reason before its end marker is written for it; None or -1: any number.
    logits_processors: processors of plugins, each by its name, as {"name": ..., "args": {...}} or as LogitsProcessorParams; run in this order.
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
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None  # True: compute the whole prompt; always so with prompt_logprobs
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    structured_outputs: StructuredOutputsParams | None = None  # the form that the answer must have
    thinking_token_budget: int | None = None
    logits_processors: tuple[LogitsProcessorParams, ...] = ()
    extra_args: Any = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: Any = None
    trace_decode_token_ids: Any = None
    repetition_detection: Any = None
    watermarking: Any = None

    def __post_init__(self) -> None:
        self.verify()

    def verify(self) -> None:
        """Bring lists to one form and check every field. Raises RequestError naming field, value and range."""
        self.stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        self.stop_token_ids = tuple(self.stop_token_ids or ())
        self.bad_words = tuple(self.bad_words or ())
        self.logit_bias = self.logit_bias or {}
        self.seed = None if self.seed == -1 else self.seed
        self.thinking_token_budget = None if self.thinking_token_budget == -1 else self.thinking_token_budget
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = tuple(self.allowed_token_ids)
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = tuple(self.logprob_token_ids)
        self.logits_processors = _processors(self.logits_processors or ())
        self._check_numbers()
        self._check_lists()
        self._check_output()
        for name, remedy in REFUSED_FIELDS.items():
            if getattr(self, name):
                raise RequestError(f"{name} is set: leave it out: {remedy}", field=name)

    def clone(self) -> SamplingParams:
        """A copy that can be changed without changing this one; checked like a new one."""
        return replace(self)

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
        if self.thinking_token_budget is not None:
            _whole("thinking_token_budget", self.thinking_token_budget, -1, None)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, None)
            if self.min_tokens > self.max_tokens:
                raise RequestError(f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}: lower min_tokens", field="min_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), -1, None)
        if self.truncate_prompt_tokens is not None:
            _whole("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, None)
            if self.truncate_prompt_tokens == 0:
                raise RequestError("truncate_prompt_tokens is 0: it must be -1 (as many as fit) or at least 1", field="truncate_prompt_tokens")

    def _check_lists(self) -> None:
        _texts("stop", self.stop, MAX_STOP_STRINGS, "each stop must be a non-empty string")
        _texts("bad_words", self.bad_words, MAX_BAD_WORDS, "each must be a string that is not blank")
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty: leave it out to allow all tokens", field="allowed_token_ids")
        for token in self.allowed_token_ids or ():
            _whole("allowed_token_ids", token, 0, None)
        for token, bias in self.logit_bias.items():
            _whole("logit_bias", token, 0, None)
            _real(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if self.logprob_token_ids is not None:
            if self.logprobs is None:
                raise RequestError("logprob_token_ids is set but logprobs is not: set logprobs to 0 or more", field="logprob_token_ids")
            if len(self.logprob_token_ids) > MAX_ASKED_IDS:
                raise RequestError(f"logprob_token_ids has {len(self.logprob_token_ids)} ids, at most {MAX_ASKED_IDS} are allowed", field="logprob_token_ids")
            for token in self.logprob_token_ids:
                _whole("logprob_token_ids", token, 0, None)

    def _check_output(self) -> None:
        if not self.detokenize and self.stop:
            raise RequestError("stop is set but detokenize is false: stop strings are looked for in the text; use stop_token_ids", field="stop")
        if self.truncation_side not in (None, "left", "right"):
            raise RequestError(f"truncation_side is {self.truncation_side!r}: it must be 'left' or 'right'", field="truncation_side")
        if self.truncation_side is not None and self.truncate_prompt_tokens is None:
            raise RequestError("truncation_side is set but truncate_prompt_tokens is not: set it, -1 for as many as fit", field="truncation_side")
        try:
            self.output_kind = RequestOutputKind(self.output_kind)
        except ValueError:
            kinds = ", ".join(kind.name for kind in RequestOutputKind)
            raise RequestError(f"output_kind is {self.output_kind!r}: it must be a RequestOutputKind ({kinds})", field="output_kind") from None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise RequestError for a token id at or past `vocab_size`."""
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("logit_bias", tuple(self.logit_bias)),
            ("logprob_token_ids", self.logprob_token_ids or ()),
        ):
            for token in ids:
                if token >= vocab_size:
                    raise RequestError(f"{name} holds token id {token}, but the vocabulary has {vocab_size} tokens (0..{vocab_size - 1})", field=name)

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(slots=True)
class BeamSearchParams:
    """beam_width: live beams, and answers given. length_penalty: above 0 long answers gain, below 0 short ones.

    include_stop_str_in_output: the EOS that ended an answer is in its tokens. skip_special_tokens: they are not in the text.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: Any = None
    skip_special_tokens: bool = True
    watermarking: Any = None

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RequestError(f"{name} is {value!r}: it must be a whole number from 1", field=name)
        if self.temperature != 0.0:
            raise RequestError(f"temperature is {self.temperature!r}: a beam search draws nothing, leave it at 0", field="temperature")
        for name in ("structured_outputs", "watermarking"):
            if getattr(self, name):
                raise RequestError(f"{name} is set: a beam search does not take it, use generate with SamplingParams", field=name)
        if not isinstance(self.length_penalty, int | float):
            raise RequestError(f"length_penalty is {self.length_penalty!r}: it must be a number", field="length_penalty")


def sampling_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of SamplingParams fields that a model brings in its generation_config.json; null and other entries are left out."""
    return {name: generation[name] for name in GENERATION_DEFAULTS if generation.get(name) is not None}


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


def _processors(given: Any) -> tuple[LogitsProcessorParams, ...]:
    """Each as its name and arguments."""
    name = "logits_processors"
    if not isinstance(given, list | tuple):
        raise RequestError(f"{name} is a {type(given).__name__}: give a list of names", field=name)
    if len(given) > MAX_LOGITS_PROCESSORS:
        raise RequestError(f"{name} has {len(given)} entries, at most {MAX_LOGITS_PROCESSORS} are allowed", field=name)
    return tuple(one if isinstance(one, LogitsProcessorParams) else _processor(one) for one in given)


def _processor(one: Any) -> LogitsProcessorParams:
    if callable(one):
        why = "code of a request is not run: let a plugin register it (hook llmx_logits_processors, docs/hooks.md) and give its name"
        raise RequestError(f"logits_processors holds {one!r:.80}: {why}", field="logits_processors")
    entry = {"name": one} if isinstance(one, str) else one
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"] or set(entry) - {"name", "args"}:
        raise RequestError(f'logits_processors holds {one!r:.80}: each must be a name, or {{"name": ..., "args": {{...}}}}', field="logits_processors")
    args = entry.get("args") or {}
    if not isinstance(args, Mapping):
        raise RequestError(f"logits_processors holds args {args!r:.80}: they must be an object", field="logits_processors")
    return LogitsProcessorParams(entry["name"], dict(args))


def _texts(name: str, texts: tuple[str, ...], most: int, rule: str) -> None:
    if len(texts) > most:
        raise RequestError(f"{name} has {len(texts)} strings, at most {most} are allowed", field=name)
    for text in texts:
        if not isinstance(text, str) or not (text.strip() if name == "bad_words" else text):
            raise RequestError(f"{name} holds {text!r}: {rule}", field=name)
