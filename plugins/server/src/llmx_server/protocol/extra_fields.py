"""Body fields that the request models do not declare: refused when they would change the answer, named when unknown.

Nothing that a client asked for is dropped silently: a field that llmx knows but cannot honour is a 400, one that it does
not know is reported in a `Warning` response header, and the few that only describe the caller are accepted as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["check_extra", "warning_header"]

# They describe the caller or its bookkeeping and have no effect on the answer.
_WITHOUT_EFFECT = frozenset({"user", "metadata", "service_tier", "prompt_cache_key", "safety_identifier", "parallel_tool_calls", "request_id", "session_id"})

# Known but not supported: name -> the values that ask for nothing and are therefore accepted.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "suffix": ("",),
    "best_of": (1,),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "store": (False,),
    "verbosity": ("medium",),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": (),
    "logprob_token_ids": ([],),
    "logits_processors": ([],),
    "thinking_token_budget": (),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "repetition_detection": (),
    "stream_interval": (1,),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "min_new_tokens": (),
    "max_new_tokens": (),
}

_REMEDY: Mapping[str, str] = {
    "chat_template": "a template runs on the server, so requests may not bring one: start the server with --chat-template, or pass chat_template_kwargs",
    "min_new_tokens": "use min_tokens",
    "max_new_tokens": "use max_tokens",
    "suffix": "fill-in-the-middle is not supported",
}

_MAX_NAMED = 10  # unknown fields that the header names


def check_extra(extra: Mapping[str, Any] | None) -> list[str]:
    """Names of the unknown fields. Raises RequestError for a known field that asks for what is not supported."""
    unknown = []
    for name, value in (extra or {}).items():
        if name in _NEUTRAL:
            if not any(value == neutral and type(value) is type(neutral) for neutral in _NEUTRAL[name]):
                raise RequestError(f"{name} is {shorten(value)}: {_REMEDY.get(name, 'this is not supported yet, leave it out')}", field=name)
        elif name not in _WITHOUT_EFFECT:
            unknown.append(name)
    return unknown


def warning_header(unknown: list[str]) -> dict[str, str]:
    """Response headers that name ignored fields; empty when there are none."""
    if not unknown:
        return {}
    # ascii() leaves nothing that could end the header or break its encoding.
    names = ", ".join(ascii(name[:40]).strip("'\"").replace('"', "") for name in unknown[:_MAX_NAMED])
    more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    return {"Warning": f'299 llmx "unknown fields ignored: {names}{more}"'}
