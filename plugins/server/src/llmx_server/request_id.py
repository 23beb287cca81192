"""The X-Request-Id header: taken from the client when it is sane, made otherwise, always sent back."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["RequestId"]

_SANE = re.compile(rb"[!-~]{1,128}")  # printable ASCII without spaces: safe in logs and headers


class RequestId:
    """ASGI middleware that adds X-Request-Id to every response.

    The engine's own ids are made by the server: two clients that send the same header never share a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with its id added to the response headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _SANE.fullmatch(given) else uuid.uuid4().hex.encode()
        scope["llmx.request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)
