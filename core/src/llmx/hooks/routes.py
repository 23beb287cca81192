"""RouteDef: an HTTP route that a plugin adds to the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from llmx.record import record

__all__ = ["RouteDef"]


@record
class RouteDef:
    """A route of a plugin. path: begins with /, parameters in braces. methods: GET, POST, PUT, PATCH, DELETE.

    endpoint: `async def endpoint(request)` with Starlette's Request, whose body is read up to the server's limit; it gives a Starlette Response, or a
    dict or list, which is answered as JSON. A RequestError that it raises is answered 400, another LlmxError as everywhere, anything else 500.
    scope: what a key must have where keys are asked for; any: a key, whatever it may do. summary: one line for /openapi.json.
    """

    path: str
    methods: tuple[str, ...]
    endpoint: Callable[[Any], Awaitable[Any]]
    scope: Literal["admin", "generate", "embed", "any"] = "admin"
    summary: str = ""
