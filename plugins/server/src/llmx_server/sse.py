"""Server-sent events: a response that streams prebuilt bytes, reports an error in its place and stops with its client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmx.errors import LlmxError
from llmx_server.disconnect import until_disconnect
from llmx_server.errors import failure_body
from llmx_server.frames import event

__all__ = ["DONE", "EventStream"]

DONE = b"data: [DONE]\n\n"

_log = logging.getLogger("llmx.server")


def _failed(error: Exception) -> bytes:
    return event(failure_body(error))


class EventStream(Response):
    """Streams the bytes of `events`.

    The first event is awaited before the headers go out, so an error before it is answered with its own status. A later
    error becomes the event that `failed` makes of it, then `end`. Each event is sent before the next is asked for: a slow reader holds back
    its own stream and nothing piles up. A client that goes away closes `events`.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        *,
        failed: Callable[[Exception], bytes] = _failed,
        end: bytes = DONE,
    ) -> None:
        self._events, self._failed, self._end = events, failed, end
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Sets the headers; a stream has no length."""
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the stream."""
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnect:
            return

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events, b"")  # nothing: a response whose last event the client has seen
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for data in events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            except LlmxError as error:
                await send({"type": "http.response.body", "body": self._failed(error), "more_body": True})
            except Exception as error:  # noqa: BLE001  the border to the client: the status is sent, only an event can tell it
                _log.exception("a stream failed")
                await send({"type": "http.response.body", "body": self._failed(error), "more_body": True})
            await send({"type": "http.response.body", "body": self._end, "more_body": False})
