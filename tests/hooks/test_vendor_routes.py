"""A plugin adds HTTP routes: llmx_routes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import PluginError
from llmx.hooks import RouteDef
from llmx_server import create_app
from llmx_server.keys import new_key
from llmx_server.plugin_routes import PluginRoutes
from tests.hooks.vendor import install

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))  # its tests' stand-in for an engine

from fake_engine import FakeEngine  # noqa: E402
from in_process import http_of  # noqa: E402

ZOO = """
from llmx.errors import RequestError
from llmx.hooks import OptionDef, RouteDef, hookimpl
from starlette.responses import PlainTextResponse

async def animal(request):
    if request.path_params["name"] == "yeti":
        raise RequestError("there is no yeti: ask for an ape", field="name")
    if request.path_params["name"] == "bomb":
        raise KeyError("bomb")
    return {"name": request.path_params["name"], "size": request.query_params.get("size")}

async def feed(request):
    return PlainTextResponse(f"{len(await request.body())} bytes of food")

@hookimpl
def llmx_add_options():
    return [OptionDef("gate", "str", "path of the zoo", default="/zoo")]

@hookimpl
def llmx_routes(config):
    gate = config.plugins["zoo"]["gate"]
    return [
        RouteDef(gate + "/animals/{name}", ("GET",), animal, scope="any", summary="Look at an animal"),
        RouteDef(gate + "/food", ("POST", "PUT"), feed),
    ]
"""


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path, monkeypatch, "llmx-zoo", {"zoo_llmx.py": ZOO}, "[llmx.plugins]\nzoo = zoo_llmx\n")
    return tmp_path


def _ask(config: EngineConfig, ask: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with http_of(create_app(FakeEngine(), config)) as client:  # type: ignore[arg-type]
            await ask(client)

    asyncio.run(main())


def test_routes_are_answered_in_cores_shapes_and_shown(zoo: Path) -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        found = await client.get("/zoo/animals/ape?size=2", headers={"x-request-id": "mine"})
        assert (found.status_code, found.json(), found.headers["x-request-id"]) == (200, {"name": "ape", "size": "2"}, "mine")
        wrong = await client.get("/zoo/animals/yeti")
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "name" and "no yeti" in wrong.json()["error"]["message"]
        broken = await client.get("/zoo/animals/bomb")
        assert broken.status_code == 500 and broken.json()["error"]["type"] == "server_error" and "bomb" not in broken.text
        assert (await client.put("/zoo/food", content=b"figs")).text == "4 bytes of food"
        assert (await client.get("/zoo/food")).status_code == 405 and (await client.get("/zoo")).status_code == 404
        assert (await client.post("/zoo/food", content=b"x" * (33 * 2**20))).status_code == 413
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert paths["/zoo/animals/{name}"]["get"]["summary"] == "Look at an animal" and set(paths["/zoo/food"]) == {"post", "put"}
        assert paths["/zoo/animals/{name}"]["get"]["parameters"][0]["name"] == "name"

    _ask(EngineConfig(), ask)


def test_keys_guard_them(zoo: Path) -> None:
    lines = {name: new_key(name, scopes) for name, scopes in (("boss", ("admin",)), ("user", ("generate",)))}
    file = zoo / "keys"
    file.write_text("".join(line + "\n" for _, line in lines.values()))

    async def ask(client: httpx.AsyncClient) -> None:
        for name, path, method, status in (
            (None, "/zoo/animals/ape", "GET", 401),
            (None, "/zoo/food", "POST", 401),
            ("user", "/zoo/animals/ape", "GET", 200),
            ("user", "/zoo/food", "POST", 403),
            ("boss", "/zoo/food", "POST", 200),
            ("user", "/v1/models", "GET", 200),
            ("user", "/v1/admin/models", "GET", 403),
        ):
            headers = {"authorization": f"Bearer {lines[name][0]}"} if name else {}
            assert (await client.request(method, path, headers=headers)).status_code == status, (name, path)

    _ask(EngineConfig(server=ServerConfig(api_key_file=str(file))), ask)


@pytest.mark.parametrize(("gate", "core"), [
    ("/v1/models", "/v1/models/{name:path}"),
    ("/v1/responses/{any}", ""),
    ("/{rest:path}", "/openapi.json"),
])  # fmt: skip
def test_a_route_that_meets_cores_is_refused_with_both_names(zoo: Path, gate: str, core: str) -> None:
    config = EngineConfig(plugins={"zoo": {"gate": gate}})
    if not core:
        create_app(FakeEngine(), config)  # type: ignore[arg-type]  # deeper than any of core's
        return
    with pytest.raises(PluginError) as caught:
        create_app(FakeEngine(), config)  # type: ignore[arg-type]
    assert "zoo" in str(caught.value) and f"{gate}/animals" in str(caught.value) and core in str(caught.value)


async def _nothing(request: object) -> None:
    return None


def test_routes_that_cannot_be_are_refused() -> None:
    for route, message in (
        (RouteDef("zoo", ("GET",), _nothing), "must begin with /"),
        (RouteDef("/zoo", ("FETCH",), _nothing), "methods FETCH"),
        (RouteDef("/zoo", (), _nothing), "methods none"),
        (RouteDef("/zoo", ("GET",), _nothing, scope="all"), "scope 'all'"),  # type: ignore[arg-type]
        (RouteDef("/zoo", ("GET",), lambda request: None), "async def"),  # type: ignore[arg-type,return-value]
        ("/zoo", "must be a RouteDef"),
    ):
        with pytest.raises(PluginError, match=message):
            PluginRoutes([("zoo", route)], [])  # type: ignore[list-item]
    for first, second, meet in (("/a/{x}", "/{y}/b", True), ("/a/{x}", "/a", False), ("/a", "/a", True), ("/a/{x:path}", "/a/b/c", True), ("/a", "/b", False)):
        both = [("one", RouteDef(first, ("GET",), _nothing)), ("two", RouteDef(second, ("POST",), _nothing))]
        if not meet:
            assert len(PluginRoutes(both, []).routes) == 2
            continue
        with pytest.raises(PluginError, match="two.*plugin 'one'"):
            PluginRoutes(both, [])


def test_the_example_in_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).parents[2] / "examples/hooks_plugin/src/llmx_shared_machine/__init__.py"
    files = {"llmx_shared_machine/__init__.py": source.read_text()}
    install(tmp_path, monkeypatch, "llmx-shared-machine", files, "[llmx.plugins]\nshared_machine = llmx_shared_machine\n")

    async def ask(client: httpx.AsyncClient) -> None:
        found = (await client.get("/shared_machine/load")).json()
        assert len(found["load"]) == 3 and found["cpus"] >= 1

    _ask(EngineConfig(), ask)
