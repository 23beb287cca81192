"""Anthropic's error bodies."""

from __future__ import annotations

from typing import Any

__all__ = ["anthropic_error"]

_STATUS_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 405: "invalid_request_error",
    408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Anthropic's error body."""
    return {"type": "error", "error": {"type": _STATUS_TYPES.get(status, "api_error"), "message": message}}
