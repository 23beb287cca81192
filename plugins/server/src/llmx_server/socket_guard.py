"""What a WebSocket must show before it reaches a route: that no page of another origin opened it, and a key where keys are asked for.

A browser lets any page open a socket to any server and cannot send a key as a header. So the origin is checked here, and the
key may come as the first message: {"type": "auth", "api_key": KEY}.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmx_server.errors import error_body
from llmx_server.keys import Key

__all__ = ["SameOrigin", "deny", "key_from_first_message", "same_origin"]

NO_KEY = 4401  # close code: no valid key
_FIRST_MESSAGE_S = 10.0
_PORTS = {b"http": b":80", b"https": b":443"}


class _Auth(msgspec.Struct, tag_field="type", tag="auth"):
    api_key: str


_AUTH = msgspec.json.Decoder(_Auth)


class SameOrigin:
    """ASGI middleware: a WebSocket whose Origin header names another host than its Host header is answered 403. No Origin, no browser: passes.

    allowed: other origins that pass, as llmx_server.origins reads them.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str] = ()) -> None:
        self._app, self._allowed = app, frozenset(origin.encode() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the connection on or refuses it."""
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if origin is None or same_origin(origin, host) or {origin.lower(), b"*"} & self._allowed:
            await self._app(scope, receive, send)
            return
        shown = origin[:80].decode("latin-1")
        here = host[:80].decode("latin-1")
        message = f"Origin is {shown!r}, which is not this server ({here!r}): only its own page and those of --allowed-origins may open a WebSocket"
        await deny(scope, send, 403, message + "; a proxy in front must pass the Host header on", "origin_not_allowed")


def same_origin(origin: bytes, host: bytes) -> bool:
    """Whether an Origin header names the server that the Host header does."""
    scheme, separator, name = origin.lower().partition(b"://")
    port = _PORTS.get(scheme, b"")
    return bool(separator and name and port) and name.removesuffix(port) == host.lower().removesuffix(port)


async def deny(scope: Scope, send: Send, status: int, message: str, code: str) -> None:
    """Answer a handshake with an HTTP error and OpenAI's body; where the server cannot, with a plain refusal."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": NO_KEY if status == 401 else 1008})
        return
    body = msgspec.json.encode(error_body(message, code=code))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def key_from_first_message(receive: Receive, send: Send, known: Callable[[bytes], Key | None]) -> tuple[Key, Receive, Send] | None:
    """Accept the connection and read a key. None when there is none that is `known`, then the connection is closed (4401).

    Else (what `known` says, receive, send) for the application, to which the connection looks new: its own acceptance is not sent again.
    """
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            message = await receive()
        if message["type"] == "websocket.disconnect":
            return None
        found = known(_AUTH.decode(message.get("text") or message.get("bytes") or b"").api_key.encode(errors="replace"))
    except (TimeoutError, msgspec.DecodeError):
        found = None
    if found is None:
        await send({"type": "websocket.close", "code": NO_KEY, "reason": 'no valid API key: send {"type": "auth", "api_key": KEY} first'})
        return None
    to_come: list[Message] = [{"type": "websocket.connect"}]

    async def receive_after() -> Message:
        return to_come.pop() if to_come else await receive()

    async def send_after(message: Message) -> None:
        if message["type"] != "websocket.accept":
            await send(message)

    return found, receive_after, send_after
