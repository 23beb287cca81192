"""How an error looks to a client: OpenAI's shape {"error": {"message", "type", "param", "code"}} and a fitting status."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from llmx.errors import Conflict, EngineDead, ModelNotFound, PromptTooLong, QueueFull, QueueTimeout, RequestAborted, RequestError, RequestFailed, RequestTimeout

__all__ = [
    "RETRY_AFTER_S",
    "BodyTooLarge",
    "GenerationFailed",
    "NothingAllowed",
    "JsonResponse",
    "ModelAsleep",
    "NotFound",
    "NotReady",
    "QuotaExceeded",
    "RateLimited",
    "error_body",
    "failure_body",
    "failure_status",
]

RETRY_AFTER_S = 5  # told to clients while the engine is loading, draining or restarting


class JsonResponse(Response):
    """A JSON response; NaN and infinity, which JSON lacks, become null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The encoded body."""
        return msgspec.json.encode(content)


class BodyTooLarge(RequestError):
    """The body is larger than the server reads."""

    status = 413


class NotReady(RequestError):
    """The engine is still loading, or the server is shutting down."""

    status = 503


class ModelAsleep(NotReady):
    """The model was put to sleep; somebody must wake it."""


class NotFound(RequestError):
    """What a path names is not here, or not here any more."""

    status = 404


class GenerationFailed(RequestError):
    """The engine ended this request with an error of its own."""

    status = 500


class NothingAllowed(RequestError):
    """The request's own limits left no token to draw, which shows only while it runs."""


class RateLimited(RequestError):
    """A key has used what it may for now. kind: "requests" or "tokens"."""

    status = 429

    def __init__(self, message: str, *, kind: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.kind, self.retry_after_s = kind, retry_after_s


class QuotaExceeded(RequestError):
    """A key has used its budget. retry_after_s: until the next one begins; None: there is none."""

    status = 429

    def __init__(self, message: str, *, retry_after_s: int | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def error_body(message: str, *, type: str = "invalid_request_error", param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error answer."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def failure_status(error: Exception) -> tuple[int, dict[str, str]]:
    """HTTP status and extra headers for an exception."""
    if isinstance(error, QueueFull | RateLimited):
        return error.status, {"Retry-After": str(error.retry_after_s)}
    if isinstance(error, QuotaExceeded):
        again = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        return error.status, {"x-should-retry": "false", **again}  # OpenAI's clients heed it: soon it will be no better
    if isinstance(error, NotReady | RequestAborted):
        return error.status, {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, RequestError):
        return error.status, {}
    if isinstance(error, EngineDead):
        return 503, {"Retry-After": str(RETRY_AFTER_S)}
    return 500, {}


def failure_body(error: Exception) -> dict[str, Any]:
    """Body for an exception. Only messages meant for clients are shown; of others nothing but that they happened."""
    if isinstance(error, RequestError):
        kind = _kind(error) or ("invalid_request_error" if error.status < 500 else "server_error")
        return error_body(str(error), type=kind, param=error.field, code=_code(error))
    if isinstance(error, EngineDead):
        return error_body(str(error) or "the engine has stopped", type="server_error", code="engine_dead")
    return error_body("internal error: see the server's log", type="server_error", code="internal_error")


def _kind(error: RequestError) -> str | None:
    return error.kind if isinstance(error, RateLimited) else "insufficient_quota" if isinstance(error, QuotaExceeded) else None


def _code(error: RequestError) -> str | None:
    codes = (
        (PromptTooLong, "context_length_exceeded"),
        (ModelNotFound, "model_not_found"),
        (QueueTimeout, "queue_timeout"),
        (QueueFull, "queue_full"),
        (RequestTimeout, "request_timeout"),
        (RequestFailed, "internal_error"),
        (RequestAborted, "aborted"),
        (Conflict, "conflict"),
        (NotFound, "not_found"),
        (ModelAsleep, "model_asleep"),
        (NotReady, "not_ready"),
        (GenerationFailed, "generation_failed"),
        (NothingAllowed, "nothing_allowed"),
        (BodyTooLarge, "body_too_large"),
        (RateLimited, "rate_limit_exceeded"),
        (QuotaExceeded, "insufficient_quota"),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)
