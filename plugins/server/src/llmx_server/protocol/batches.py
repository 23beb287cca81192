"""POST /v1/batches and /v1/files: what a client sends, and how long files live."""

from __future__ import annotations

from typing import Any

from llmx.errors import RequestError
from llmx_server.batch_lines import ENDPOINTS
from llmx_server.body import BodyModel, shorten, whole
from llmx_server.protocol.metadata import check_metadata

__all__ = ["BatchRequest", "expiry"]

_MIN_EXPIRY_S, _MAX_EXPIRY_S = 3600, 30 * 24 * 3600  # OpenAI's limits


class BatchRequest(BodyModel):
    """A body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises RequestError for a value that is not supported."""
        check_metadata(self.metadata)
        if self.endpoint not in ENDPOINTS:
            raise RequestError(f"endpoint is {shorten(self.endpoint)}: it must be one of {', '.join(ENDPOINTS)}", field="endpoint")
        if self.completion_window != "24h":
            raise RequestError(f"completion_window is {shorten(self.completion_window)}: it must be 24h", field="completion_window")

    @property
    def output_lives_s(self) -> int | None:
        """Seconds that the files of answers are kept; None: until they are deleted. Raises RequestError."""
        given = self.output_expires_after
        return None if given is None else expiry(given.get("anchor"), given.get("seconds"), "output_expires_after")


def expiry(anchor: Any, seconds: Any, name: str) -> int:
    """`seconds`, checked. Raises RequestError naming the field."""
    if anchor != "created_at":
        raise RequestError(f"{name}.anchor is {shorten(anchor)}: it must be created_at", field=name)
    seconds = whole(seconds)
    try:
        value = 0 if isinstance(seconds, float) else int(seconds)
    except (TypeError, ValueError):
        value = 0
    if not _MIN_EXPIRY_S <= value <= _MAX_EXPIRY_S:
        raise RequestError(f"{name}.seconds is {shorten(seconds)}: it must be in {_MIN_EXPIRY_S}..{_MAX_EXPIRY_S}", field=name)
    return value
