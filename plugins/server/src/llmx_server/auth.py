"""The API key guard: every path needs a key but the three that orchestrators probe and the files of the page at `/`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from llmx_server.error_shapes import in_shape
from llmx_server.errors import JsonResponse, error_body
from llmx_server.socket_guard import deny, key_from_first_message
from llmx_server.web.page import PAGE_PATHS

__all__ = ["OPEN_PATHS", "ApiKeyGuard"]

OPEN_PATHS = frozenset({"/health", "/ready", "/version"}) | PAGE_PATHS


class ApiKeyGuard:
    """ASGI middleware that answers 401 unless `Authorization: Bearer KEY` or `x-api-key: KEY` names one of `keys`.

    Default deny: a route added later is guarded without a change here. Preflight requests (OPTIONS) carry no key and reach
    no handler that does work, so they pass. on_refused is called for each 401.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], root_path: str = "", on_refused: Callable[[], None] = lambda: None) -> None:
        self._app = app
        self._keys = tuple(_digest(key.encode()) for key in keys)
        self._on_refused = on_refused
        self._open = OPEN_PATHS | {root_path.rstrip("/") + path for path in OPEN_PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on or answers 401."""
        if scope["type"] == "lifespan" or self._passes(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
            return
        self._on_refused()
        message = "no valid API key: send the header `Authorization: Bearer KEY` with a key given to --api-key"
        body = in_shape(scope["path"], 401, error_body(message, code="invalid_api_key"))
        response = JsonResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await response(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket without a valid key in its headers: 401 for a wrong one; without any, the first message must bring it."""
        if _shown(scope):
            self._on_refused()
            await deny(scope, send, 401, "no valid API key: the header names none that was given to --api-key", "invalid_api_key")
        elif channel := await key_from_first_message(receive, send, self._knows):
            await self._app(scope, *channel)
        else:
            self._on_refused()

    def _passes(self, scope: Scope) -> bool:
        if scope.get("method") == "OPTIONS" or scope["path"] in self._open:
            return True
        key = _shown(scope)
        return bool(key) and self._knows(key)

    def _knows(self, key: bytes) -> bool:
        # Digests of equal length, every one compared, each in constant time: how long it takes tells nothing about how near a guess was.
        matches = [hmac.compare_digest(_digest(key.strip()), known) for known in self._keys]
        return any(matches)


def _shown(scope: Scope) -> bytes:
    """The key that the headers have; empty: none."""
    headers = dict(scope["headers"])
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        key = headers.get(b"x-api-key", b"")  # Anthropic's clients
    return bytes(key)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
