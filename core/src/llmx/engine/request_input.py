"""From what a user gives to what an engine takes: prompts in every form, and a checked copy of the SamplingParams.

Everything that cannot be served is refused here, by the name of the key or field, with what to give instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict

from llmx.engine.bad_words import with_bad_word_ids
from llmx.errors import RequestError
from llmx.record import record
from llmx.sampling_params import SamplingParams
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["ParsedPrompt", "Prompt", "TextPrompt", "TokensPrompt", "as_batch", "cut_prompt", "one_per_prompt", "parse_prompt", "request_params"]

Prompt = str | Sequence[int] | Mapping[str, Any]  # text, token ids, or a dict with "prompt" or "prompt_token_ids", and "cache_salt"

_TEXT_ONLY = "models take text only here: leave it out"
_REFUSED_KEYS = {
    "prompt_embeds": "embeddings are no prompts here: give 'prompt' or 'prompt_token_ids'",
    "encoder_prompt": "encoder-decoder models are not served: give 'prompt'",
    "decoder_prompt": "encoder-decoder models are not served: give 'prompt'",
    "multi_modal_data": _TEXT_ONLY,
    "multi_modal_uuids": _TEXT_ONLY,
    "mm_processor_kwargs": _TEXT_ONLY,
    "media_io_kwargs": _TEXT_ONLY,
    "data": "there are no I/O plugins: give 'prompt' or 'prompt_token_ids'",
}
_TAKEN_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_TOKENIZATION = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side")


class TextPrompt(TypedDict):
    """A prompt as text. cache_salt: prefix-cache entries are shared only between requests with the same one."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. prompt: its text, to be shown in the output."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


@record
class ParsedPrompt:
    """One prompt. text: as the user wrote it, None for bare token ids. cache_salt: "" for none."""

    text: str | None
    ids: list[int]
    cache_salt: str = ""


def as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of one call: a single one needs no list."""
    if isinstance(prompts, str | Mapping) or _is_ids(prompts) or getattr(prompts, "ndim", 0) == 1:
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _is_ids(prompts: object) -> bool:
    return isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(token, int) for token in prompts)


def one_per_prompt(name: str, values: Any, count: int, kind: type, default: Any) -> list[Any]:
    """`values` for each of `count` prompts: one for all, or a list of as many; None gives the default. Raises RequestError naming the argument."""
    if values is None:
        return [default] * count
    if isinstance(values, kind):
        return [values] * count
    listed = list(values) if isinstance(values, Iterable) else [values]
    wrong = next((one for one in listed if not isinstance(one, kind)), None)
    if isinstance(values, Mapping) or wrong is not None:
        what = type(values).__name__ if isinstance(values, Mapping) or not isinstance(values, Iterable) else f"list that holds a {type(wrong).__name__}"
        raise RequestError(f"{name} is a {what}: give a {kind.__name__}, or a list of them", field=name)
    if len(listed) != count:
        raise RequestError(f"{count} prompts but {len(listed)} {name}: give one, or one per prompt", field=name)
    return listed


def parse_prompt(prompt: Prompt, tokenizer: Tokenizer, tokenization: Mapping[str, Any] | None = None) -> ParsedPrompt:
    """Token ids of a prompt in any form. tokenization: add_special_tokens is read here. Raises RequestError naming the key at fault."""
    text: Any = prompt if isinstance(prompt, str) else None
    ids: Any = None if isinstance(prompt, str | Mapping) else prompt
    salt = ""
    if isinstance(prompt, Mapping):
        _check_keys(prompt)
        text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt") or ""
    special = _tokenization(tokenization).get("add_special_tokens", True)
    if ids is None:
        if not isinstance(text, str):
            raise RequestError(f"the prompt is a {type(text).__name__}: give text or token ids", field="prompt")
        ids = tokenizer.encode(text, add_special_tokens=special)
    elif text is not None and not isinstance(text, str):
        raise RequestError(f"the prompt's text is a {type(text).__name__}: it must be a string", field="prompt")
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt is {salt!r}: it must be a string", field="cache_salt")
    return ParsedPrompt(text, _whole_numbers(ids), salt)


def _whole_numbers(ids: Any) -> list[int]:
    """Token ids from a list, a tuple or an array of any library."""
    listed = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(listed, list | tuple) or any(not isinstance(token, int) for token in listed):
        raise RequestError(f"the prompt is a {type(ids).__name__}: it must be text, or a list of whole numbers", field="prompt")
    return list(listed)


def _check_keys(prompt: Mapping[str, Any]) -> None:
    for key, value in prompt.items():
        if value is not None and key in _REFUSED_KEYS:
            raise RequestError(f"the prompt dict has {key!r}: {_REFUSED_KEYS[key]}", field=key)
        if key not in _REFUSED_KEYS and key not in _TAKEN_KEYS:
            raise RequestError(f"a prompt dict has no key {key!r}: the keys are {', '.join(_TAKEN_KEYS)}", field=key)
    if prompt.get("prompt") is None and prompt.get("prompt_token_ids") is None:
        raise RequestError(f"a prompt dict must hold 'prompt' or 'prompt_token_ids', found {sorted(prompt)}", field="prompt")


def _tokenization(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for key in given or {}:
        if key not in _TOKENIZATION:
            raise RequestError(f"tokenization_kwargs has {key!r}: the keys are {', '.join(_TOKENIZATION)}", field="tokenization_kwargs")
    return given or {}


def request_params(
    params: SamplingParams,
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    tokenization: Mapping[str, Any] | None = None,
    max_logprobs: int | None = None,
) -> SamplingParams:
    """A checked copy of params with -1 written out and bad words as tokens.

    tokenization: its truncate_prompt_tokens and truncation_side win over those of params. max_logprobs: the most that may be asked
    for; None: every token's. Raises RequestError.
    """
    changes: dict[str, Any] = {key: value for key, value in _tokenization(tokenization).items() if key != "add_special_tokens"}
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if isinstance(value, int) and not -1 <= value <= vocab_size:
            raise RequestError(f"{name} is {value}: the vocabulary has {vocab_size} tokens, -1 asks for all", field=name)
        wanted = vocab_size if value == -1 else value
        if max_logprobs is not None and isinstance(wanted, int) and wanted > max_logprobs:
            raise RequestError(f"{name} is {value}: at most {max_logprobs} may be asked for (max_logprobs)", field=name)
        changes[name] = wanted
    checked = replace(params, **changes)
    checked.check_vocabulary(vocab_size)
    return with_bad_word_ids(checked, tokenizer)


def cut_prompt(ids: list[int], params: SamplingParams, max_model_len: int) -> list[int]:
    """The ids that truncate_prompt_tokens leaves; -1: as many as fit the context beside max_tokens (or one token)."""
    most = params.truncate_prompt_tokens
    if most is None:
        return ids
    if most == -1:
        most = max(max_model_len - max(params.max_tokens or 1, 1), 1)
    return ids[:most] if params.truncation_side == "right" else ids[-most:]
