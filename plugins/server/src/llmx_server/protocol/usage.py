"""Token counts and the head that every answer and chunk shares."""

from __future__ import annotations

import time
import uuid
from typing import Any

__all__ = ["response_head", "usage"]


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object. A prompt counts once whatever n is; completion_tokens are summed over the choices."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def response_head(prefix: str, kind: str, model: str, fingerprint: str) -> dict[str, Any]:
    """id, object, created, model and system_fingerprint; the id is new."""
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
    }
