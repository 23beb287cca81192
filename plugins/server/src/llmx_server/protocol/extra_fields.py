"""Body fields that the request models do not declare: refused when they would change the answer, named when they do nothing.

Nothing that a client asked for is dropped silently; api_fields has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten
from llmx_server.protocol.api_fields import ApiField, Route, field_of, is_known, nearest

__all__ = ["check_extra", "warning_header"]

_MAX_NAMED = 10  # fields that the header names


def check_extra(route: Any, extra: Mapping[str, Any] | None, find: Callable[[Any, str], ApiField | None] = field_of) -> list[str]:
    """What a Warning must say, one phrase per field. Raises RequestError for a known field that asks for what is not supported.

    find: the table that the route's fields stand in.
    """
    phrases: list[str] = []
    for name, value in (extra or {}).items():
        field = find(route, name)
        if field is None or field.state == "works":  # works: of /v1/chat/completions, where another route asks
            why = _why(route, name) if len(phrases) < _MAX_NAMED else ""  # what no header shows needs no search
            phrases.append(f"{name[:40]} ({why})")
        elif any(value == neutral and type(value) is type(neutral) for neutral in field.neutral):
            continue
        elif field.state == "refused":
            raise RequestError(f"{name} is {shorten(value)}, which is not supported here: {field.what}", field=name)
        else:
            phrases.append(f"{name} ({field.what})")
    return phrases


def _why(route: Route, name: str) -> str:
    if is_known(name):
        return "not a field of this route"
    meant = nearest(route, name[:40])
    return f"unknown, {meant}?" if meant else "unknown"


def warning_header(phrases: Iterable[str]) -> dict[str, str]:
    """Response headers that name what was ignored; empty when nothing was."""
    named = list(phrases)
    if not named:
        return {}
    # ascii() leaves nothing that could end the header or break its encoding.
    shown = ", ".join(ascii(phrase).strip("'\"").replace('"', "") for phrase in named[:_MAX_NAMED])
    more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return {"Warning": f'299 llmx "ignored: {shown}{more}"'}
