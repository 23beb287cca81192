"""Pages of other origins: off by default; those that are allowed may ask over HTTP and open a WebSocket, the same ones by both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from in_process import serving
from test_default_deny import handshake

from llmx.config import ServerConfig
from llmx.errors import ConfigError
from llmx_server.listen import listen
from llmx_server.origins import read_origins

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.com"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
BODY = {"prompt": "a", "max_tokens": 2}


async def opened(app: object, origin: str) -> bool:
    """Whether a page of this origin may open a WebSocket."""
    return await handshake(app, "/v1/chat/ws", [(b"host", b"t"), (b"origin", origin.encode())]) == 101  # type: ignore[arg-type]


async def test_off_by_default(engine: FakeEngine) -> None:
    async with serving(engine) as client:
        answer = await client.post("/v1/completions", json=BODY, headers={"origin": PAGE})
        assert answer.status_code == 200 and not [name for name in answer.headers if name.startswith("access-control")]
        assert (await client.options("/v1/completions", headers={"origin": PAGE, **PREFLIGHT})).status_code == 405
        assert not await opened(client.app, PAGE) and await opened(client.app, "http://t")  # type: ignore[attr-defined]


async def test_an_allowed_page_and_others(engine: FakeEngine) -> None:
    async with serving(engine, allowed_origins=("HTTPS://App.Example.com:443/", "http://localhost:3000")) as client:
        for origin in (PAGE, "http://localhost:3000"):
            asked = await client.options("/v1/completions", headers={"origin": origin, **PREFLIGHT})
            assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == origin
            assert "authorization" in asked.headers["access-control-allow-headers"] and "POST" in asked.headers["access-control-allow-methods"]
            answer = await client.post("/v1/completions", json=BODY, headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin and "access-control-allow-credentials" not in answer.headers
            assert answer.headers["access-control-expose-headers"] == "*" and answer.json()["choices"][0]["text"] == "he"
            assert await opened(client.app, origin)  # type: ignore[attr-defined]
        for origin in ("https://app.example.com.evil.com", "http://app.example.com", "https://app.example.com:444", "null", "http://localhost"):
            asked = await client.options("/v1/completions", headers={"origin": origin, **PREFLIGHT})
            assert asked.status_code == 400 and "access-control-allow-origin" not in asked.headers
            assert "access-control-allow-origin" not in (await client.get("/v1/models", headers={"origin": origin})).headers
            assert not await opened(client.app, origin)  # type: ignore[attr-defined]
        assert await opened(client.app, "http://t")  # type: ignore[attr-defined]


async def test_errors_can_be_read_too(engine: FakeEngine) -> None:
    async with serving(engine, allowed_origins=(PAGE,), api_keys=("right",)) as client:
        assert (await client.options("/v1/completions", headers={"origin": PAGE, **PREFLIGHT})).status_code == 200  # browsers show no key there
        for headers, status in (({}, 401), ({"authorization": "Bearer right"}, 404)):
            answer = await client.post("/v1/completions", json={**BODY, "model": "gone"}, headers={"origin": PAGE, **headers})
            assert answer.status_code == status and answer.headers["access-control-allow-origin"] == PAGE


async def test_every_page(engine: FakeEngine) -> None:
    async with serving(engine, allowed_origins=("*",)) as client:
        for more in ({}, {"cookie": "a=b"}):
            answer = await client.get("/v1/models", headers={"origin": "http://any.where", **more})
            assert answer.headers["access-control-allow-origin"] in ("*", "http://any.where") and "access-control-allow-credentials" not in answer.headers
        assert await opened(client.app, "http://any.where")  # type: ignore[attr-defined]


def test_what_holds_by_default_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert re.search(r"^\| `--host` \| `127\.0\.0\.1` \|", page, re.MULTILINE) and re.search(r"^\| `--allowed-origins` \|  \|", page, re.MULTILINE)


def test_how_origins_are_written() -> None:
    given = ("*", "http://A.b:80", "https://a.b:443/", "http://[::1]:3000", "chrome-extension://abc", "http://a:8080")
    assert read_origins(given) == ("*", "http://a.b", "https://a.b", "http://[::1]:3000", "chrome-extension://abc", "http://a:8080")


@pytest.mark.parametrize("origin", ["example.com", "https://", "https://a/path", "https://a?x", "null", '["*"]', "https://a,https://b", "https://u@a", ""])
def test_what_is_no_origin_is_told_before_anything_loads(origin: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins has .*: it must be \\* or a scheme, a host") as told:
        listen(ServerConfig(port=0, allowed_origins=(origin,)))
    assert told.value.field == "allowed_origins"
