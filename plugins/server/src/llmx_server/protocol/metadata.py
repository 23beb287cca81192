"""The field `metadata` of things that are kept."""

from __future__ import annotations

from collections.abc import Mapping

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["check_metadata"]

_MAX_ENTRIES, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # OpenAI's limits


def check_metadata(given: Mapping[str, str] | None) -> None:
    """Raises RequestError for more than may be kept."""
    entries = given or {}
    if len(entries) > _MAX_ENTRIES:
        raise RequestError(f"metadata has {len(entries)} entries: at most {_MAX_ENTRIES} are allowed", field="metadata")
    for key, value in entries.items():
        if len(key) > _MAX_KEY or len(value) > _MAX_VALUE:
            limits = f"keys have at most {_MAX_KEY} characters and values {_MAX_VALUE}"
            raise RequestError(f"metadata[{shorten(key)}] is too long: {limits}", field="metadata")
