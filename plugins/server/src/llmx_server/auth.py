"""The API key guard: every path needs a key, and a key the scopes of the path, but the three that orchestrators probe and the files of the page at `/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmx_server.caller import acting
from llmx_server.callers import Callers
from llmx_server.error_shapes import in_shape
from llmx_server.errors import JsonResponse, error_body
from llmx_server.keys import Key
from llmx_server.limits import Meter
from llmx_server.scopes import scopes_of
from llmx_server.socket_guard import deny, key_from_first_message
from llmx_server.web.page import PAGE_PATHS

__all__ = ["NO_VALID_KEY", "OPEN_PATHS", "ApiKeyGuard", "shown_key"]

OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/version"}) | PAGE_PATHS
NO_VALID_KEY = "no valid API key: send the header `Authorization: Bearer KEY` with a key given to --api-key or --api-key-file"


class ApiKeyGuard:
    """ASGI middleware that answers 401 unless `Authorization: Bearer KEY` or `x-api-key: KEY` names a key of `callers`, 403 where the key lacks a scope.

    Default deny: a route added later is guarded without a change here. scopes: which a path asks for. Preflight requests (OPTIONS) carry no key and reach
    no handler that does work, so they pass. on_refused is called for each refusal with its code.
    """

    def __init__(
        self, app: ASGIApp, callers: Callers, root_path: str = "", on_refused: Callable[[str], None] = lambda code: None,
        scopes: Callable[[str], frozenset[str]] = scopes_of,
    ) -> None:  # fmt: skip
        self._app = app
        self._callers, self._keys = callers, callers.keys
        self._root = root_path.rstrip("/")
        self._on_refused, self._scopes_of = on_refused, scopes
        self._open = OPEN_PATHS | {self._root + path for path in OPEN_PATHS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 401 or 403."""
        if scope["type"] == "lifespan" or scope.get("method") == "OPTIONS" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        shown = shown_key(scope["headers"])
        if not shown and scope["type"] == "websocket":
            await self._first_message(scope, receive, send)
            return
        key = self._keys.find(shown) if shown else None
        lacking = self._lacking(key, scope) if key else frozenset()
        if key and not lacking:
            who = self._callers.of(key)
            with acting(who):
                await self._app(scope, receive, _with_limits(send, who.meter) if who.meter else send)
        elif key:
            message = f"the API key {key.name!r} may not do this: it lacks the scope {', '.join(sorted(lacking))}"
            await self._refuse(scope, receive, send, 403, message, "insufficient_scope")
        else:
            await self._refuse(scope, receive, send, 401, NO_VALID_KEY, "invalid_api_key")

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, status: int, message: str, code: str) -> None:
        self._on_refused(code)
        if scope["type"] == "websocket":
            await deny(scope, send, status, message, code)
            return
        body = in_shape(scope["path"], status, error_body(message, code=code))
        await JsonResponse(body, status_code=status, headers={"WWW-Authenticate": "Bearer"} if status == 401 else {})(scope, receive, send)

    async def _first_message(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket without a key in its headers: the first message must bring it."""

        def known(shown: bytes) -> Key | None:
            key = self._keys.find(shown.strip())
            return key if key is not None and not self._lacking(key, scope) else None

        if found := await key_from_first_message(receive, send, known):
            key, receive_after, send_after = found
            with acting(self._callers.of(key)):
                await self._app(scope, receive_after, send_after)
        else:
            self._on_refused("invalid_api_key")

    def _lacking(self, key: Key, scope: Scope) -> frozenset[str]:
        return self._scopes_of(scope["path"].removeprefix(self._root)) - key.scopes


def _with_limits(send: Send, meter: Meter) -> Send:
    """Tells with every answer over HTTP what is left of the limits."""

    async def send_with_limits(message: Message) -> None:
        if message["type"] == "http.response.start":
            shown = [(name.encode(), value.encode()) for name, value in meter.headers().items()]
            message["headers"] = [*message.get("headers", ()), *shown]
        await send(message)

    return send_with_limits


def shown_key(given: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that the headers have; empty: none."""
    headers = dict(given)
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer":
        key = headers.get(b"x-api-key", b"")  # Anthropic's clients
    return bytes(key).strip()
