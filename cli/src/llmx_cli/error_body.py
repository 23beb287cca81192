"""What the body of an error answer says."""

from __future__ import annotations

import json

__all__ = ["error_message"]


def error_message(body: bytes) -> str:
    """The message, in the shape that OpenAI's API has, or the start of the body as it stands."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no reason given"
