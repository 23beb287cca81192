"""Which gRPC status says what an HTTP answer says."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

__all__ = ["details_of", "status_of", "status_of_event"]

_MAX_DETAILS = 4096  # bytes as they are sent; clients take 8 KiB of headers by default

_OF_HTTP = {
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    408: StatusCode.DEADLINE_EXCEEDED,
    413: StatusCode.RESOURCE_EXHAUSTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    499: StatusCode.CANCELLED,
    503: StatusCode.UNAVAILABLE,
}
# An event has no HTTP status of its own; those of other codes are told by the type of the error.
_OF_CODE = {
    "engine_dead": StatusCode.UNAVAILABLE,
    "queue_full": StatusCode.UNAVAILABLE,
    "queue_timeout": StatusCode.UNAVAILABLE,
    "not_ready": StatusCode.UNAVAILABLE,
    "model_asleep": StatusCode.UNAVAILABLE,
    "aborted": StatusCode.UNAVAILABLE,
    "request_timeout": StatusCode.DEADLINE_EXCEEDED,
    "body_too_large": StatusCode.RESOURCE_EXHAUSTED,
    "model_not_found": StatusCode.NOT_FOUND,
    "not_found": StatusCode.NOT_FOUND,
}


_OF_TYPE = {"server_error": StatusCode.INTERNAL, "invalid_request_error": StatusCode.INVALID_ARGUMENT}  # others are the limits of keys


def status_of(http: int) -> StatusCode:
    """The status for an answer that is not 200."""
    return _OF_HTTP.get(http, StatusCode.INVALID_ARGUMENT if http < 500 else StatusCode.INTERNAL)


def status_of_event(error: dict[str, Any]) -> StatusCode:
    """The status for an error that came as an event of a stream."""
    return _OF_CODE.get(error["code"]) or _OF_TYPE.get(error["type"], StatusCode.RESOURCE_EXHAUSTED)


def details_of(message: str) -> str:
    """The message, cut where it would be longer than clients read: what is no ASCII is sent as three bytes for each of its own."""
    room = _MAX_DETAILS
    for place, letter in enumerate(message):
        room -= 1 if " " <= letter <= "~" and letter != "%" else 3 * len(letter.encode(errors="replace"))
        if room < 0:
            return message[:place] + "..."
    return message
