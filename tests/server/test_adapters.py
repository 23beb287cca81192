"""LoRA adapters over HTTP: names as models, loading and unloading, and a live server on whose engine they act."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, FakeSteering, Info
from in_process import http_of
from processes import HANG_S, children, serve
from test_live import PRESENT
from tests.lora.adapters import smollm2_adapter

from llmx.config import EngineConfig, LoraConfig
from llmx.engine.messages import Control
from llmx.errors import EngineDead, RequestError
from llmx_server import create_app
from llmx_server.served_models import ServedModels

pytestmark = pytest.mark.anyio

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    "/v1/responses": {"input": "a"},
}


async def load(client: httpx.AsyncClient, name: str, **more: Any) -> httpx.Response:
    return await client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": f"/{name}", **more})


@pytest.mark.parametrize("path", BODIES)
async def test_an_adapter_is_a_model_of_every_route(path: str, client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await load(client, "x")).status_code == 200
    answer = await client.post(path, json={"model": "x", **BODIES[path]})
    assert answer.status_code == 200 and answer.json()["model"] == "x"
    assert (await client.post(path, json={"model": "fake-model", **BODIES[path]})).status_code == 200
    assert engine.loras == ["x", ""]


async def test_adapters_stand_among_the_models(client: httpx.AsyncClient) -> None:
    await load(client, "org/x")
    models = (await client.get("/v1/models")).json()["data"]
    assert [(one["id"], one["parent"], one["root"]) for one in models] == [
        ("fake-model", None, "fake-model"),
        ("alias/with.dots", None, "fake-model"),
        ("org/x", "fake-model", "/org/x"),
    ]
    assert (await client.get("/v1/models/org/x")).json() == models[2]
    assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "org/x"})).json() == {"id": "org/x", "object": "model", "unloaded": True}
    gone = await client.post("/v1/completions", json={"model": "org/x", "prompt": "a"})
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "model_not_found"


async def test_what_is_asked_of_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await load(client, "x", load_inplace=True, pin=True)
    assert answer.json() == {"id": "x", "object": "model", "parent": "fake-model", "rank": 4, "pinned": True}
    assert engine.steering.asked == [("load_adapter", "x", "/x", True, True)]


async def test_one_that_a_resolver_finds_is_served(engine: FakeEngine) -> None:
    app = create_app(engine, EngineConfig(lora=LoraConfig(enabled=True)))  # type: ignore[arg-type]
    async with http_of(app) as client:
        assert (await client.post("/v1/completions", json={"model": "found", "prompt": "a"})).json()["model"] == "found"
        assert (await client.post("/v1/completions", json={"model": "other", "prompt": "a"})).status_code == 404
        assert engine.loras == ["found"] and [one["id"] for one in (await client.get("/v1/models")).json()["data"]][-1] == "found"


async def test_what_is_refused(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for answer, status, field in (
        (await load(client, "alias/with.dots"), 400, "lora_name"),
        (await load(client, "x", rank=4), 400, "rank"),
        (await load(client, "x", base_model="y"), 404, "model"),
        (await client.post("/v1/unload_lora_adapter", json={"lora_name": "x"}), 404, "lora_name"),
        (await client.post("/v1/load_lora_adapter", json={"lora_name": "x"}), 400, "lora_path"),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)
    assert not engine.steering.asked
    engine.steering.refused = RequestError("adapter 'x': /x: is no folder", field="lora_path")
    answer = await load(client, "x")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_path")


async def test_a_name_belongs_to_one_model() -> None:
    first, second = FakeEngine(), FakeEngine(info=Info(name="second", served_names=("second",)))
    app = create_app(first, EngineConfig(), others=[(second, EngineConfig())])  # type: ignore[arg-type, list-item]
    async with http_of(app) as client:
        assert (await load(client, "x", base_model="second")).json()["parent"] == "second"
        assert (await load(client, "x")).status_code == 400
        assert (await load(client, "y", base_model="x")).json()["error"]["param"] == "base_model"
        await client.post("/v1/completions", json={"model": "x", "prompt": "a"})
        assert second.loras == ["x"] and first.loras == []


class Waking(FakeEngine):
    """Its next engine has a steering of its own, which refuses `broken` with `error`."""

    made: list[FakeEngine]
    error: Exception

    def another(self) -> FakeEngine:
        new, steering = super().another(), FakeSteering()
        load = steering.load_adapter

        async def load_adapter(name: str, path: str, **more: Any) -> dict[str, Any]:
            if name == "broken":
                raise self.error
            return await load(name, path, **more)

        steering.load_adapter = load_adapter  # type: ignore[method-assign]
        new.steering = steering
        self.made.append(new)
        return new


@pytest.mark.parametrize("error", [RequestError("/broken: is no folder"), EngineDead("gone")])
async def test_waking_goes_on_without_adapters_that_are_gone(error: Exception) -> None:
    """And an engine that dies meanwhile is not left behind."""
    engine = Waking()
    engine.made, engine.error = [], error
    app = create_app(engine, EngineConfig(lora=LoraConfig(enabled=True)))  # type: ignore[arg-type]
    models: ServedModels = app.state.models
    for name in ("broken", "x"):
        engine.steering.loads[name] = Control(0, "load_lora", json.dumps({"name": name, "path": f"/{name}", "in_place": True, "pin": False}))
    models.default.residence = "idle"
    async with http_of(app) as client:
        answer = await client.post("/v1/completions", json={"prompt": "a"})
        (new,) = engine.made
        if isinstance(error, RequestError):
            assert answer.status_code == 200 and models.default.engine is new and list(new.steering.adapters) == ["x"] and not new.closed
        else:
            assert answer.status_code == 503 and models.default.engine is engine and new.closed


class Refusing(FakeSteering):
    """It finds an adapter of another model."""

    async def resolve_adapter(self, name: str) -> bool:
        raise RequestError(f"adapter {name!r}: it belongs to another model", field="model")


async def test_an_adapter_that_does_not_fit_one_model_is_looked_for_in_the_others(tmp_path: Path) -> None:
    """Also in those that are idle, which are woken where they may have it."""
    first, second = FakeEngine(steering=Refusing()), FakeEngine(info=Info(name="second", served_names=("second",)))
    smollm2_adapter(tmp_path / "found")
    config, folder = EngineConfig(lora=LoraConfig(enabled=True)), EngineConfig(lora=LoraConfig(folder=str(tmp_path)))
    app = create_app(first, config, others=[(second, folder)])  # type: ignore[arg-type, list-item]
    models: ServedModels = app.state.models
    other = list(models)[1]
    other.residence = "idle"
    async with http_of(app) as client:
        answer = await client.post("/v1/completions", json={"model": "none" * 100, "prompt": "a"})
        assert answer.status_code == 400 and "belongs to another model" in answer.text and other.residence == "idle"
        assert (await client.post("/v1/completions", json={"model": "found", "prompt": "a"})).json()["model"] == "found"
        assert other.residence == "loaded" and second.loras == ["found"] and first.loras == []


@pytest.mark.skipif("cpu" not in PRESENT, reason="the CPU platform is not installed")
def test_live(tmp_path: Path) -> None:
    """Loaded at the start and at run time; kept by an engine process that replaces a dead one; counted in /metrics."""
    a, b = smollm2_adapter(tmp_path / "a", 1, size=0.3), smollm2_adapter(tmp_path / "b", 2, size=0.3)
    options = ("--platform", "cpu", "--threads", "1", "--max-model-len", "256", "--num-blocks", "40", "--lora-modules", f"a={a}")
    with serve("smollm2-135m-instruct", *options) as server, httpx.Client(base_url=server.url, timeout=HANG_S) as client:

        def answer(model: str) -> str:
            body = {"model": model, "prompt": "The Nile flows into", "max_tokens": 6, "temperature": 0}
            text: str = client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]
            return text

        client.post("/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": str(b), "pin": True}).raise_for_status()
        texts = [answer(name) for name in ("smollm2-135m-instruct", "a", "b")]
        assert len(set(texts)) == 3
        counted = client.get("/metrics").text
        assert 'llmx:lora_slots_used{model_name="smollm2-135m-instruct"} 2.0' in counted
        os.kill(children(server.process)[0], signal.SIGKILL)
        assert [answer(name) for name in ("smollm2-135m-instruct", "a", "b")] == texts
