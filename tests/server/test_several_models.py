"""Several models in one server, on engines that a test controls: which one answers, what is told of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, Info
from in_process import http_of

from llmx.config import EngineConfig
from llmx.errors import ConfigError
from llmx.pooling_params import PoolingConfig
from llmx_server import create_app

pytestmark = pytest.mark.anyio

ASK = [{"role": "user", "content": "hi"}]


class Three:
    """Two models that give text, and one that gives vectors."""

    def __init__(self) -> None:
        self.first = FakeEngine(answer=lambda ids: "one")
        self.second = FakeEngine(answer=lambda ids: "two", info=Info(name="second", served_names=("second", "2nd")))
        vectors = PoolingConfig(False, "mean", 4)
        self.vectors = FakeEngine(info=Info(name="vectors", served_names=("vectors",), pooling=vectors))
        others = [(engine, EngineConfig()) for engine in (self.second, self.vectors)]
        self.app = create_app(self.first, EngineConfig(), others=others)  # type: ignore[arg-type]


@pytest.fixture
def three() -> Three:
    return Three()


@pytest.fixture
async def ask(three: Three) -> AsyncIterator[httpx.AsyncClient]:
    async with http_of(three.app) as client:
        yield client


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/chat/completions/batch": {"messages": [ASK]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": ASK, "max_tokens": 9},
    "/invocations": {"messages": ASK},
}


@pytest.mark.parametrize("path", BODIES)
async def test_the_model_of_the_body_answers(ask: httpx.AsyncClient, three: Three, path: str) -> None:
    for model, engine in (("fake-model", three.first), ("2nd", three.second)):
        response = await ask.post(path, json={**BODIES[path], "model": model})
        assert response.status_code == 200, response.text
        assert response.json()["model"] == model and ("one" if engine is three.first else "two") in response.text
    unknown = await ask.post(path, json={**BODIES[path], "model": "none"})
    assert unknown.status_code == 404
    assert "available are fake-model, alias/with.dots, second, 2nd, vectors" in unknown.json()["error"]["message"]
    if path != "/v1/messages":
        assert unknown.json()["error"]["code"] == "model_not_found"
    other = await ask.post(path, json={**BODIES[path], "model": "vectors"})
    assert other.status_code == 400 and "this model gives vectors" in other.text


async def test_without_a_model_the_first_answers(ask: httpx.AsyncClient) -> None:
    answer = (await ask.post("/v1/completions", json={"prompt": "x"})).json()
    assert answer["model"] == "fake-model" and answer["choices"][0]["text"] == "one"


async def test_vectors_are_asked_of_the_model_that_gives_them(ask: httpx.AsyncClient) -> None:
    for path, body in (("/v1/embeddings", {"input": "x"}), ("/rerank", {"query": "x", "documents": ["y"]}), ("/v2/embed", {"texts": ["x"]})):
        response = await ask.post(path, json={**body, "model": "second"})
        assert response.status_code == 400 and "this model gives text" in response.text, path
    assert (await ask.post("/tokenize", json={"prompt": "x", "model": "vectors"})).json()["count"] == 1


async def test_all_names_are_listed(ask: httpx.AsyncClient) -> None:
    listed = (await ask.get("/v1/models")).json()["data"]
    assert [(one["id"], one["root"]) for one in listed] == [
        ("fake-model", "fake-model"), ("alias/with.dots", "fake-model"), ("second", "second"), ("2nd", "second"), ("vectors", "vectors"),
    ]  # fmt: skip
    assert (await ask.get("/v1/models/2nd")).json()["root"] == "second"
    assert (await ask.get("/v1/models/none")).status_code == 404


async def test_health_of_all_and_of_each(ask: httpx.AsyncClient, three: Three) -> None:
    well = (await ask.get("/health")).json()
    assert well == {"status": "ok", "reason": "ok", "models": {"fake-model": "ok", "second": "ok", "vectors": "ok"}}
    three.second.alive = False
    ill = await ask.get("/health")
    assert ill.status_code == 200 and ill.json()["status"] == "degraded" and ill.json()["models"]["second"] != "ok"
    assert (await ask.get("/health?model=2nd")).status_code == 503
    assert (await ask.get("/ready?model=vectors")).json() == {"status": "ready", "reason": "ok"}
    three.first.alive = three.vectors.alive = False
    assert (await ask.get("/health")).status_code == (await ask.get("/ready")).status_code == 503


async def test_metrics_and_state_tell_the_models_apart(ask: httpx.AsyncClient, three: Three) -> None:
    three.second.counts.requests_waiting = 7
    await ask.post("/v1/completions", json={"prompt": "x", "model": "2nd"})
    await ask.post("/v1/completions", json={"prompt": "x", "model": "2nd", "temperature": 9})
    text = (await ask.get("/metrics")).text
    assert 'llmx:num_requests_waiting{model_name="second"} 7.0' in text and 'llmx:num_requests_running{model_name="fake-model"} 0.0' in text
    assert 'llmx:e2e_request_latency_seconds_count{model_name="second"} 1.0' in text
    assert 'llmx:request_rejections_total{model_name="second",reason="invalid_request"} 1.0' in text
    assert 'model_name="fake-model",reason="invalid_request"' not in text
    assert text.count("# TYPE llmx:num_requests_running gauge") == 1
    state = (await ask.get("/engine/state?model=second")).json()
    assert state["model"] == "second" and state["engine"]["requests"]["waiting"] == 7 and "vectors" in state["models"]
    assert (await ask.get("/engine/state")).json()["model"] == "fake-model"
    assert (await ask.get("/engine/state?model=none")).status_code == 404


def test_two_models_of_one_name() -> None:
    with pytest.raises(ConfigError, match="two models have the name 'fake-model'.*--served-model-name"):
        create_app(FakeEngine(), EngineConfig(), others=[(FakeEngine(), EngineConfig())])  # type: ignore[arg-type, list-item]
