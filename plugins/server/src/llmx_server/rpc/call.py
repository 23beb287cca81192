"""AppCall: one gRPC call as a request to the application, so that keys, scopes, limits, metrics and errors are those of HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import msgspec
from grpc import StatusCode
from starlette.types import ASGIApp, Message

from llmx_server.errors import error_body, failure_body, failure_status
from llmx_server.in_process import scope_of
from llmx_server.rpc.status import details_of, status_of, status_of_event

__all__ = ["AppCall", "headers_of"]

_PASSED = ("authorization", "x-api-key", "x-request-id", "traceparent", "tracestate")  # what a client's metadata tells the application
_SHOWN = ("x-request-id", "x-ratelimit-", "warning", "retry-after")  # beginnings of what its headers tell the client

_NOT_READ = "the client has not read its answer for {:g} s (--reader-timeout)"

_log = logging.getLogger("llmx.server")

MakeBody = Callable[[], dict[str, Any]]


def headers_of(metadata: Any) -> list[tuple[bytes, bytes]]:
    """Metadata of a call as the headers of a request."""
    return [(name.encode(), value.encode() if isinstance(value, str) else value) for name, value in metadata or () if name in _PASSED]


class AppCall:
    """running: tasks that the end of the server waits for. reader_timeout_s: a client that takes nothing for so long is cut off; 0: never."""

    def __init__(self, app: ASGIApp, context: Any, running: set[asyncio.Task[Any]], reader_timeout_s: float) -> None:
        self._app, self._context, self._running, self._reader_timeout_s = app, context, running, reader_timeout_s
        self._gone = asyncio.Event()  # the client does not read
        self._status = 0
        self._shown: list[tuple[str, str]] = []
        self._parts: list[bytes] = []

    async def whole(self, method: str, path: str, make_body: MakeBody = dict) -> bytes:
        """The body of an answer that is 200; another ends the call with its status. make_body may raise RequestError."""

        async def keep(data: bytes) -> None:
            self._parts.append(data)

        await self._ask(method, path, make_body, keep)
        return b"".join(self._parts)

    async def streamed(self, path: str, make_body: MakeBody, on_part: Callable[[bytes], Awaitable[None]]) -> None:
        """Hands on each part of an answer that is 200, once the client takes the one before."""
        await self._ask("POST", path, make_body, on_part)

    async def write(self, message: Any) -> None:
        """One message to the client; waits while it does not keep up. Does not return where it never will."""
        try:
            async with asyncio.timeout(self._reader_timeout_s or None):
                await self._context.write(message)
                return
        except TimeoutError:
            _log.warning("client %s: %s: cut off", self._context.peer(), _NOT_READ.format(self._reader_timeout_s))
        self._gone.set()
        await asyncio.Event().wait()  # the application hears of it as of every client that goes away, and ends this

    async def fail_by_event(self, event: dict[str, Any]) -> NoReturn:
        """End the call with an error that came as an event of a stream."""
        await self.fail(status_of_event(event["error"]), event)

    async def fail(self, status: StatusCode, body: dict[str, Any]) -> NoReturn:
        """End the call with an error, given as the body that HTTP would have."""
        error = body["error"]
        about = [(f"error-{name}", str(error[name]).encode("ascii", "replace").decode()) for name in ("code", "param") if error[name]]
        await self._context.abort(status, details_of(error["message"]), (*self._shown, *about))
        raise AssertionError("abort raises")

    async def _ask(self, method: str, path: str, make_body: MakeBody, on_part: Callable[[bytes], Awaitable[None]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        bodies = [make_body]

        async def receive() -> Message:
            if bodies:  # made here, where the key has been looked at and an error is answered as every other
                return {"type": "http.request", "body": msgspec.json.encode(bodies.pop()()), "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._begin(message)
            elif self._status != 200:
                self._parts.append(message.get("body", b""))
            elif message.get("body"):
                await on_part(message["body"])

        headers = [(b"host", b"grpc"), (b"content-type", b"application/json"), *headers_of(self._context.invocation_metadata())]
        try:
            await self._app(scope_of(method, path, headers), receive, send)
        except Exception as error:  # noqa: BLE001  the application has answered and logged it; servers see it raised again
            if not self._status:
                self._status, self._parts = failure_status(error)[0], [msgspec.json.encode(failure_body(error))]
        _log.debug("%s gRPC %s %s", self._context.peer(), path, self._status)
        if self._gone.is_set():
            self._running.discard(task)  # it reads this when it goes on reading; nothing waits for that
            await self.fail(StatusCode.RESOURCE_EXHAUSTED, error_body(_NOT_READ.format(self._reader_timeout_s)))
        if self._status != 200:
            await self.fail(status_of(self._status), _body(b"".join(self._parts)))

    async def _begin(self, message: Message) -> None:
        self._status = message["status"]
        headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        self._shown = [(name, value) for name, value in headers.items() if name.startswith(_SHOWN)]
        if self._status == 200:
            await self._context.send_initial_metadata(tuple(self._shown))
            self._shown = []


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
        return body if "message" in body["error"] else error_body(str(body))
    except (ValueError, KeyError, TypeError):
        return error_body(data.decode(errors="replace")[:200])
