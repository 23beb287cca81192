"""/pause, /resume, /reset_prefix_cache and the profile routes: whom they reach, what they answer, and that they answer as /openapi.json says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fake_engine import FakeEngine, Info
from in_process import http_of
from processes import llmx, serve
from tests.cases.echo import install

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import Conflict
from llmx_server import create_app
from llmx_server.scopes import scopes_of

pytestmark = pytest.mark.anyio
MODEL = "smollm2-135m-instruct"


@asynccontextmanager
async def two(**server: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine, FakeEngine]]:
    first, second = FakeEngine(), FakeEngine(info=Info(name="second", served_names=("second",)))
    app = create_app(first, EngineConfig(server=ServerConfig(**server)), others=[(second, EngineConfig())])  # type: ignore[arg-type, list-item]
    async with http_of(app) as client:
        yield client, first, second


def check(document: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """The answer is what the document says, with nothing beside it."""
    schemas = {name: {"additionalProperties": False, **schema} for name, schema in document["components"]["schemas"].items()}
    schema = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema, path
    jsonschema.validate(answer.json(), {**schema, "components": {"schemas": schemas}})


async def test_answers_of_admin_routes_are_as_described() -> None:
    async with two(profile_dir="/p") as (client, _, _):
        document = (await client.get("/openapi.json")).json()
        calls = [
            ("GET", "/v1/admin/models"), ("GET", "/is_sleeping"), ("POST", "/pause"), ("GET", "/is_paused"), ("POST", "/resume"), ("POST", "/start_profile"),
            ("POST", "/stop_profile"), ("POST", "/reset_prefix_cache"), ("POST", "/sleep"), ("POST", "/wake_up"), ("POST", "/v1/admin/models/load"),
            ("POST", "/v1/admin/models/unload"), ("POST", "/v1/load_lora_adapter"), ("POST", "/v1/unload_lora_adapter"),
        ]  # fmt: skip
        bodies = {"/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "/x"}, "/v1/unload_lora_adapter": {"lora_name": "x"}}
        for method, path in calls:
            answer = await client.request(method, path, **({"json": bodies.get(path, {"model": "second"})} if "load" in path else {}))  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text
            check(document, method, path, answer)
        administered = {
            (method.upper(), path)
            for path, operations in document["paths"].items()
            if scopes_of(path) == {"admin"} and path not in ("/health", "/ready", "/version", "/", "/web/{name}")
            for method in operations
        }
        assert administered == set(calls)


async def test_pause_says_so_and_reaches_the_model_that_is_named() -> None:
    async with two() as (client, first, second):
        assert (await client.get("/ready")).status_code == 200
        assert (await client.post("/pause?model=second&mode=wait&clear_cache=true")).json() == {"status": "paused", "mode": "wait"}
        assert second.steering.asked == [("pause", "wait"), ("reset_prefix_cache", False)] and not first.steering.asked
        assert (await client.get("/is_paused")).json() == {"is_paused": False} and (await client.get("/is_paused?model=second")).json() == {"is_paused": True}
        assert (await client.get("/ready")).status_code == 200  # the other one takes requests
        paused = await client.get("/ready?model=second")
        assert paused.status_code == 503 and paused.json()["status"] == "paused" and "/resume" in paused.json()["reason"]
        assert (await client.get("/health?model=second")).status_code == 200  # it lives: nobody is to restart it
        await client.post("/pause")
        assert (await client.get("/ready")).json()["status"] == "paused" and (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.post("/resume")).json() == {"status": "running"} and (await client.get("/ready")).status_code == 200
        await client.post("/sleep?model=second")
        asleep = await client.post("/pause?model=second")
        assert asleep.status_code == 503 and asleep.json()["error"]["code"] == "model_asleep"
        assert (await client.post("/pause")).status_code == 200 and (await client.get("/ready")).json()["status"] == "paused"


@pytest.mark.parametrize("path", ["/pause?mode=now", "/pause?clear_cache=1", "/reset_prefix_cache?reset_external=true", "/resume?model=none"])
async def test_what_cannot_be_asked(path: str) -> None:
    async with two() as (client, first, second):
        refused = await client.post(path)
        assert refused.status_code == (404 if "none" in path else 400) and not first.steering.asked + second.steering.asked
        assert (await client.post("/pause", headers={"Origin": "http://evil.example"})).status_code == 400  # a page of somebody else


async def test_profiles_are_off_without_a_folder() -> None:
    async with two() as (client, first, _):
        for path in ("/start_profile", "/stop_profile"):
            refused = await client.post(path)
            assert refused.status_code == 404 and "--profile-dir" in refused.json()["error"]["message"] and not first.steering.asked
    async with two(profile_dir="/p") as (client, first, second):
        assert (await client.post("/start_profile?model=second")).json() == {"status": "profiling", "folder": "/p"}
        assert second.steering.asked == [("start_profile", "/p")] and not first.steering.asked
        second.steering.refused = Conflict("a profile is being recorded already")
        refused = await client.post("/start_profile?model=second")
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "conflict"


def test_on_a_server_with_the_command_line(tmp_path: Path) -> None:
    options = ("--platform", "echo", "--max-model-len", "64", "--num-blocks", "40", "--profile-dir", str(tmp_path / "profiles"))
    with serve(MODEL, *options, environ=install(tmp_path)) as running:
        server = ("--base-url", running.url)
        assert llmx("models", "profile", "start", *server).stdout == f"recording into {tmp_path / 'profiles'}\n"
        ask = {"model": MODEL, "prompt": "a b c d e f g h", "max_tokens": 4}
        assert httpx.post(f"{running.url}/v1/completions", json=ask).status_code == 200
        told = llmx("models", "profile", "stop", *server).stdout.splitlines()
        files = [Path(line.split()[-1]) for line in told]
        assert [file.suffix for file in files] == [".json", ".prof"] and all(file.stat().st_size for file in files)
        assert any(one["name"] == "step" for one in json.loads(files[0].read_text())["traceEvents"])
        again = llmx("models", "profile", "stop", *server)
        assert again.returncode == 1 and "no profile is being recorded" in again.stderr and "Traceback" not in again.stderr
        assert llmx("models", "pause", *server).stdout == "paused (keep)\n"
        assert httpx.get(f"{running.url}/ready").json()["status"] == "paused"
        assert llmx("models", "resume", *server).stdout == "running\n"
        assert httpx.get(f"{running.url}/ready").status_code == 200
        assert llmx("models", "reset-cache", *server).stdout.startswith(f"{MODEL}: ")
