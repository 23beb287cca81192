"""Every route of the application, HTTP and WebSocket, with no key, with each single scope, and with all: what is not open is closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from in_process import serving
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message

from llmx.config import EngineConfig
from llmx_server import create_app
from llmx_server.keys import SCOPES, new_key
from llmx_server.scopes import scopes_of
from llmx_server.web.page import PAGE_PATHS

pytestmark = pytest.mark.anyio

OPEN = {"/health", "/ready", "/ping", "/version"} | PAGE_PATHS
GENERATE, EMBED, BOTH, ANY, ADMIN = {"generate"}, {"embed"}, {"generate", "embed"}, set[str](), {"admin"}
# the first part of a path that fits says what its routes ask for; one that is in no list asks for admin
WANTED = {
    "/v1/chat/": GENERATE, "/v1/completions": GENERATE, "/v1/messages": GENERATE, "/v1/responses": GENERATE,
    "/v1/embeddings": EMBED, "/v2/embed": EMBED, "/pooling": EMBED, "/classify": EMBED, "/score": EMBED, "/v1/score": EMBED,
    "/rerank": EMBED, "/v1/rerank": EMBED, "/v2/rerank": EMBED,
    "/v1/files": BOTH, "/v1/batches": BOTH, "/invocations": BOTH,
    "/v1/models": ANY, "/tokenize": ANY, "/detokenize": ANY, "/metrics": ANY, "/engine/state": ANY, "/openapi.json": ANY,
}  # fmt: skip


def routes_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    """(method, path) of all of them, parameters filled in; WS for a WebSocket."""
    for route in routes:
        assert isinstance(route, Route | WebSocketRoute)  # a Mount would have to be walked
        filled = "/".join("x" if part.startswith("{") else part for part in route.path.split("/"))
        yield from ((method, filled) for method in (["WS"] if isinstance(route, WebSocketRoute) else sorted(route.methods or ())))


def all_routes() -> list[tuple[str, str]]:
    return sorted(set(routes_of(create_app(FakeEngine(), EngineConfig()).routes)))  # type: ignore[arg-type]


def wanted(path: str) -> set[str]:
    return next((scopes for start, scopes in WANTED.items() if path.startswith(start)), ADMIN)


async def asked(client: httpx.AsyncClient, method: str, path: str, key: str | None) -> int:
    """The status of a request; of a WebSocket the one that its handshake is answered with, 101 when it is taken."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if method != "WS":
        body = {"content": b"{}", "headers": {**headers, "content-type": "application/json"}}
        return (await client.request(method, path, **body)).status_code  # type: ignore[arg-type]
    return await handshake(client.app, path, [(b"authorization", headers["authorization"].encode())] if key else [])  # type: ignore[attr-defined]


async def handshake(app: ASGIApp, path: str, headers: list[tuple[bytes, bytes]]) -> int:
    sent: list[Message] = []
    coming: list[Message] = [{"type": "websocket.disconnect"}, {"type": "websocket.connect"}]

    async def receive() -> Message:
        return coming.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "websocket", "path": path, "raw_path": path.encode(), "root_path": "", "headers": headers, "query_string": b""}
    await app({**scope, "subprotocols": [], "client": None, "extensions": {"websocket.http.response": {}}}, receive, send)
    taken = any("ready" in str(message.get("text")) for message in sent)  # of a route, not of the guard that waits for a key
    return 101 if taken else sent[0].get("status", 401)


def test_the_walk_sees_them_all() -> None:
    routes = all_routes()
    assert len({path for _, path in routes}) > 40 and ("WS", "/v1/chat/ws") in routes and ("DELETE", "/v1/files/x") in routes
    assert ("GET", "/health") in routes and ("POST", "/v1/chat/completions") in routes and ("GET", "/openapi.json") in routes
    described = create_app(FakeEngine(), EngineConfig()).openapi()["paths"]  # type: ignore[arg-type]
    assert {"/".join("x" if part.startswith("{") else part for part in path.split("/")) for path in described} <= {path for _, path in routes}


@pytest.mark.parametrize(("method", "path"), [*all_routes(), ("POST", "/a/route/of/tomorrow"), ("GET", "/v1/x"), ("GET", "/webx")])
async def test_a_route_with_no_key_with_each_scope_and_with_all(method: str, path: str, engine: FakeEngine, tmp_path: Path) -> None:
    made = {scope: new_key(f"only-{scope}", (scope,)) for scope in SCOPES} | {"all": new_key("all", SCOPES)}
    (tmp_path / "keys").write_text("\n".join(line for _, line in made.values()) + "\n")
    async with serving(engine, api_key_file=str(tmp_path / "keys")) as client:
        if path in OPEN:
            assert await asked(client, method, path, None) not in (401, 403)
            assert await asked(client, method, path, "llmx-wrong") not in (401, 403)
            return
        assert await asked(client, method, path, None) == 401
        assert await asked(client, method, path, "llmx-wrong") == 401
        assert scopes_of(path) == wanted(path)
        for scope, (key, _) in made.items():
            enough = wanted(path) <= (set(SCOPES) if scope == "all" else {scope})
            assert (await asked(client, method, path, key) not in (401, 403)) is enough, (scope, path)
        for other in (path + "/", path + "//", "/" + path, path.upper(), path + "%2f", path + "%2f..%2fhealth"):
            if method != "WS":
                assert await asked(client, method, f"http://t{other}", None) == 401, other


async def test_a_route_that_a_later_version_adds_is_closed(engine: FakeEngine, tmp_path: Path) -> None:
    (key, line), (admin, other) = new_key("user", ("generate", "embed")), new_key("admin", ("admin",))
    (tmp_path / "keys").write_text(f"{line}\n{other}\n")
    async with serving(engine, api_key_file=str(tmp_path / "keys")) as client:
        client.app.router.routes.append(Route("/later", lambda request: JSONResponse({"secret": 1})))  # type: ignore[attr-defined]
        statuses = [await asked(client, "GET", "/later", shown) for shown in (None, key, admin)]
        assert statuses == [401, 403, 200]
