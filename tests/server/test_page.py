"""The page at / and what guards it: its headers, its files, and that all else needs a key."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine
from starlette.routing import Route, WebSocketRoute

from llmx.config import EngineConfig, ServerConfig
from llmx_server import create_app
from llmx_server.auth import OPEN_PATHS
from llmx_server.web.page import PAGE_PATHS

pytestmark = pytest.mark.anyio

STATIC = Path(__file__).parents[2] / "plugins/server/src/llmx_server/web/static"


async def test_every_file_is_served_as_it_is_with_a_strict_policy(client: httpx.AsyncClient) -> None:
    assert {f"/web/{path.name}" for path in STATIC.iterdir()} - {"/web/index.html"} | {"/"} == PAGE_PATHS
    for path in PAGE_PATHS:
        response = await client.get(path)
        name = path.rpartition("/")[2] or "index.html"
        assert response.status_code == 200 and response.content == (STATIC / name).read_bytes()
        policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["form-action"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
        assert response.headers["x-content-type-options"] == "nosniff" and response.headers["referrer-policy"] == "no-referrer"
        head = await client.head(path)
        assert head.status_code == 200 and not head.content and int(head.headers["content-length"]) == len(response.content)
        again = await client.get(path, headers={"if-none-match": response.headers["etag"]})
        assert again.status_code == 304 and not again.content
    for path in ("/web", "/web/", "/web/index.html", "/web/../page.py", "/web/%2e%2e/page.py", "/web/main.js/", "/index.html"):
        assert (await client.get(path)).status_code in (404, 307), path


def test_the_page_names_no_other_host_and_has_nothing_inline() -> None:
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"(?:https?|wss?)://([a-z0-9.-]+)", text)) - {"www.w3.org"}
        assert not hosts, (path.name, hosts)  # www.w3.org: the name of SVG's namespace, never fetched
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "@import"):
            assert word not in text, (path.name, word)
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script>|javascript:", index)
    assert re.findall(r"<script[^>]*>", index) == ['<script type="module" src="web/main.js">']


async def test_what_is_open_is_named_and_every_other_route_is_guarded(engine: FakeEngine) -> None:
    """Over the routes themselves, so that one which the API's description leaves out is covered too."""
    app = create_app(engine, EngineConfig(server=ServerConfig(api_keys=("key",))))
    assert OPEN_PATHS - PAGE_PATHS <= {"/health", "/ready", "/version", "/ping"}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    guarded = opened = 0
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for route in _routes(app):
            path = re.sub(r"\{[^}]*\}", "x", route.path)
            for method in (route.methods or set()) - {"OPTIONS"}:
                status = (await client.request(method, path)).status_code
                if path in OPEN_PATHS:
                    opened += 1
                    assert status in (200, 405), (method, path)
                else:
                    guarded += 1
                    assert status == 401, (method, path)
    assert guarded > 12 and opened > len(PAGE_PATHS)
    assert [route.path for route in app.routes if isinstance(route, WebSocketRoute)] == ["/v1/chat/ws"]  # test_chat_socket covers it


def _routes(app: object) -> list[Route]:
    return [route for route in app.routes if isinstance(route, Route)]  # type: ignore[attr-defined]


async def test_engine_state(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    counts = engine.counts
    counts.kv_blocks_used, counts.kv_blocks_cached, counts.kv_map = 3, 2, [(2, 3), (0, 30), (1, 2), (0, 29)]
    counts.prefix_queries, counts.prefix_hits = 40, 16
    await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5})
    response = await client.get("/engine/state")
    state = response.json()
    assert response.headers["cache-control"] == "no-store"
    assert state["phase"] == "ready" and state["models"] == ["fake-model", "alias/with.dots"] and state["info"]["max_model_len"] == 256
    kv = state["engine"]["kv"]
    assert kv == {"blocks": 64, "held": 3, "cached": 2, "free": 59, "map": [["held", 3], ["free", 30], ["cached", 2], ["free", 29]]}
    assert state["engine"]["prefix_cache"] == {"queries": 40, "hits": 16}
    assert state["engine"]["drafts"] == {"made": 0, "accepted": 0}
    assert state["engine"]["tokens"] == {"prompt": 3, "generated": 5}
    latency = state["latency"]
    assert latency["first_token"]["count"] == latency["whole_answer"]["count"] == 1 and latency["between_tokens"]["count"] == 4
    assert 0 <= latency["between_tokens"]["p50"] <= latency["between_tokens"]["p99"] <= latency["whole_answer"]["p50"]
    engine.alive = False
    dead = (await client.get("/engine/state")).json()
    assert dead["phase"] == "dead" and dead["engine"] is None


async def test_engine_state_while_loading(engine: FakeEngine) -> None:
    app = create_app(engine, EngineConfig(), phase="loading")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        state = (await client.get("/engine/state")).json()
        assert state["phase"] == "loading" and state["engine"] is None and state["models"] == []
        assert state["latency"]["first_token"] == {"count": 0, "p50": None, "p90": None, "p99": None}


@pytest.mark.filterwarnings("ignore:The `root_path` parameter is deprecated")
@pytest.mark.parametrize("prefix", ["", "/llm"])
async def test_behind_a_proxy_with_a_path_prefix(engine: FakeEngine, prefix: str) -> None:
    """Whether the proxy takes the prefix off or leaves it on; addresses in the page are relative."""
    app = create_app(engine, EngineConfig(server=ServerConfig(api_keys=("key",), root_path="/llm")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        assert (await client.get(f"{prefix}/")).text.startswith("<!doctype html>")
        assert (await client.get(f"{prefix}/web/main.js")).status_code == 200
        assert (await client.get(f"{prefix}/engine/state")).status_code == 401
        assert (await client.get(f"{prefix}/engine/state", headers={"x-api-key": "key"})).status_code == 200
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="/', index)
