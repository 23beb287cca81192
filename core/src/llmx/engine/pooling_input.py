"""From what a user gives to the tokens of a text for a model that gives vectors or scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmx.engine.request_input import Prompt, parse_prompt
from llmx.pooling_params import PoolingParams
from llmx.tokens.tokenizer import Tokenizer

__all__ = ["pooling_input", "texts_input"]


def pooling_input(
    prompt: Prompt, params: PoolingParams, tokenizer: Tokenizer, max_model_len: int, tokenization: Mapping[str, Any] | None
) -> tuple[list[int], int, PoolingParams]:
    """(token ids, where a second text begins: -1, params with what tokenization says). tokenization: as in LLM.generate. Raises RequestError."""
    given = dict(tokenization or {})
    params = replace(params, **{key: given.pop(key) for key in ("truncate_prompt_tokens", "truncation_side") if key in given})
    text = prompt if isinstance(prompt, str) else prompt.get("prompt") if isinstance(prompt, Mapping) and prompt.get("prompt_token_ids") is None else None
    if isinstance(text, str) and given.get("add_special_tokens", True):
        if isinstance(prompt, Mapping):
            parse_prompt(prompt, tokenizer, given)  # its keys are checked there
        return (*texts_input(text, None, params, tokenizer, max_model_len), params)
    ids = parse_prompt(prompt, tokenizer, given).ids
    if (most := _most(params, max_model_len)) is not None:
        ids = ids[:most] if params.truncation_side == "right" else ids[-most:]
    return ids, -1, params


def texts_input(text: str, pair: str | None, params: PoolingParams, tokenizer: Tokenizer, max_model_len: int) -> tuple[list[int], int]:
    """(token ids of a text or a pair, where the second begins or -1), cut as params say."""
    side: Any = params.truncation_side
    return tokenizer.encode_texts(text, pair, most=_most(params, max_model_len), side=side)


def _most(params: PoolingParams, max_model_len: int) -> int | None:
    return max_model_len if params.truncate_prompt_tokens == -1 else params.truncate_prompt_tokens
