"""Requests to the application without a connection, answered exactly as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Scope

from llmx.record import record
from llmx_server.errors import JsonResponse, failure_body, failure_status

__all__ = ["Answer", "InProcess", "scope_of"]

_JSON = ((b"content-type", b"application/json"),)


@record
class Answer:
    """A whole answer. headers: lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


class InProcess:
    """make_app: gives an application without an API key guard, when the first request comes: whoever asks here has been let in already."""

    def __init__(self, make_app: Callable[[], ASGIApp]) -> None:
        self._make_app = make_app
        self._app: ASGIApp | None = None

    async def post(self, path: str, body: bytes) -> Answer:
        """The answer to a JSON body. Cancelled, the request is aborted."""
        return await self._ask(scope_of("POST", path, [(b"host", b"batch"), *_JSON, (b"content-length", b"%d" % len(body))]), body)

    async def get(self, path: str) -> Answer:
        """The answer to a GET."""
        return await self._ask(scope_of("GET", path, [(b"host", b"here")]), b"")

    async def _ask(self, scope: Scope, body: bytes) -> Answer:
        self._app = self._app or self._make_app()
        parts: list[Message] = []
        given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if not given:
                await asyncio.Event().wait()  # the client stays; cancelling ends it
            return given.pop()

        async def send(message: Message) -> None:
            parts.append(message)

        try:
            await self._app(scope, receive, send)
        except Exception as error:  # noqa: BLE001  the application has answered and logged it; servers see it raised again
            if not parts:
                return Answer(failure_status(error)[0], {}, bytes(JsonResponse(failure_body(error)).body))
        headers = {name.decode().lower(): value.decode("latin-1") for name, value in parts[0]["headers"]}
        return Answer(parts[0]["status"], headers, b"".join(part.get("body", b"") for part in parts[1:]))


def scope_of(method: str, path: str, headers: Sequence[tuple[bytes, bytes]]) -> Scope:
    """The ASGI scope of such a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": list(headers),
        "client": None,
        "server": None,
    }
