"""Errors in the shape of the API that was asked: OpenAI's, but for Anthropic's and Cohere's paths."""

from __future__ import annotations

import uuid
from typing import Any

from llmx_server.protocol.anthropic_errors import anthropic_error

__all__ = ["in_shape"]


def in_shape(path: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    """`body`, which is in OpenAI's shape, as clients of `path` read it."""
    if path.endswith("/v2/embed"):
        return {"id": f"error-{uuid.uuid4().hex}", "message": body["error"]["message"]}
    return anthropic_error(status, body["error"]["message"]) if "/v1/messages" in path else body
