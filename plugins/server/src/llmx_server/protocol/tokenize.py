"""POST /tokenize and /detokenize: the requests."""

from __future__ import annotations

from typing import Any

from llmx_server.body import BodyModel
from llmx_server.protocol.chat import TemplateFields

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(TemplateFields):
    """Text (`prompt`) or a conversation (`messages`) to encode; add_special_tokens defaults to true for text only."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] = []
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(BodyModel):
    """Token ids to decode."""

    model: str | None = None
    tokens: list[int]
