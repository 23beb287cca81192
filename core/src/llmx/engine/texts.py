"""Texts: the tokenizer and the chat template of the API process, from what the engine process tells of the model's headers.

So the API process needs no model families and no weight readers to encode, decode and render.
"""

from __future__ import annotations

from typing import Any

from llmx.engine.messages import Headers
from llmx.record import record
from llmx.sampling_params import sampling_defaults
from llmx.tokens.chat_template import ChatTemplate
from llmx.tokens.source import TokenizerSource
from llmx.tokens.tokenizer import Tokenizer
from llmx.weights.gguf import GgufFile

__all__ = ["Texts", "load_texts"]


@record
class Texts:
    """What a model's text needs. sampling_defaults: what its generation_config.json sets, by SamplingParams field."""

    tokenizer: Tokenizer
    sampling_defaults: dict[str, Any]
    chat_template: ChatTemplate


def load_texts(headers: Headers, chat_template: str | None) -> Texts:
    """Read the tokenizer's files. chat_template: the option; None: the model's own. Raises ModelError, ConfigError."""
    metadata = GgufFile(headers.path).metadata if headers.gguf else None
    source = TokenizerSource(headers.path, metadata, tuple(headers.eos_ids), headers.cache_dir)
    tokenizer = Tokenizer.load(source)
    return Texts(tokenizer, sampling_defaults(headers.generation), ChatTemplate.load(source, tokenizer.names, chat_template))
