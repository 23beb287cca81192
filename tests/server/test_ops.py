"""Models, tokenize, health, readiness, metrics, request ids, unknown routes and the API key guard."""

from __future__ import annotations

import tomllib
from pathlib import Path

import httpx
import pytest
from fake_engine import VOCAB, FakeEngine
from in_process import serving
from prometheus_client.parser import text_string_to_metric_families

from llmx.config import EngineConfig, ServerConfig
from llmx_server import create_app
from llmx_server.auth import OPEN_PATHS

pytestmark = pytest.mark.anyio


async def test_models(client: httpx.AsyncClient) -> None:
    data = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in data] == ["fake-model", "alias/with.dots"]
    one = (await client.get("/v1/models/alias/with.dots")).json()
    assert one == data[1] and one["max_model_len"] == 256 and one["root"] == "fake-model"
    missing = await client.get("/v1/models/nope")
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


async def test_tokenize_and_back(client: httpx.AsyncClient) -> None:
    body = (await client.post("/tokenize", json={"prompt": "hé", "return_token_strs": True})).json()
    assert body == {"count": 3, "max_model_len": 256, "tokens": [104, 195, 169], "token_strs": ["h", "\ufffd", "\ufffd"]}
    assert (await client.post("/detokenize", json={"tokens": body["tokens"]})).json() == {"prompt": "hé"}
    chat = (await client.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})).json()
    assert bytes(chat["tokens"]).decode() == "user: x\nassistant: " and chat["token_strs"] is None
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["count"] == 0
    for bad in ({}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, {"prompt": 5}, {"messages": [], "prompt": None}):
        assert (await client.post("/tokenize", json=bad)).status_code == 400
    for tokens in ([VOCAB], [-1], ["1"], [1.5], [2**70], "x"):
        assert (await client.post("/detokenize", json={"tokens": tokens})).status_code == 400


async def test_health_follows_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200
    engine.alive = False
    for path in ("/health", "/ready"):
        response = await client.get(path)
        assert response.status_code == 503 and "signal 9" in response.json()["reason"]
    assert (await client.get("/metrics")).status_code == 200


async def test_loading_and_draining(engine: FakeEngine) -> None:
    app = create_app(engine, EngineConfig(), phase="loading")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://t") as client:
        for phase in ("loading", "draining"):
            app.state.models.host.phase = phase
            for path in ("/health", "/ready"):
                answer = await client.get(path)
                assert answer.status_code == 503 and answer.json()["status"] == phase
            for response in (await client.post("/v1/completions", json={"prompt": "x"}), await client.get("/v1/models")):
                assert response.status_code == 503 and response.headers["retry-after"] and response.json()["error"]["code"] == "not_ready"
            assert (await client.get("/version")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200


async def test_version_is_that_of_the_package(client: httpx.AsyncClient) -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "plugins/server/pyproject.toml").read_text())
    assert (await client.get("/version")).json() == {"version": pyproject["project"]["version"]}


async def test_metrics_count_what_happened(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.counts.prefix_queries, engine.counts.prefix_hits, engine.counts.kv_blocks_used, engine.counts.preemptions = 10, 4, 16, 3
    await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 5, "n": 2})
    await client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 100, "stream": True})
    response = await client.get("/metrics")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "fake-model"
            samples[(sample.name, *sample.labels.values())] = sample.value
    expected = {
        ("llmx:num_requests_running",): 0, ("llmx:num_requests_waiting",): 0, ("llmx:kv_cache_usage_perc",): 0.25,
        ("llmx:prefix_cache_queries_total",): 10, ("llmx:prefix_cache_hits_total",): 4, ("llmx:num_preemptions_total",): 3,
        ("llmx:prompt_tokens_total",): 6, ("llmx:generation_tokens_total",): 22,
        ("llmx:request_success_total", "length"): 2, ("llmx:request_success_total", "stop"): 1,
        ("llmx:time_to_first_token_seconds_count",): 2, ("llmx:inter_token_latency_seconds_count",): 4 + 11, ("llmx:e2e_request_latency_seconds_count",): 2,
        ("llmx:request_prompt_tokens_sum",): 6, ("llmx:request_generation_tokens_sum",): 22,
        ("llmx:step_budget_used_perc",): 0, ("llmx:device_busy_perc",): 0, ("llmx:queue_delay_seconds",): 0,
    }  # fmt: skip
    assert {name: samples.get(name) for name in expected} == expected


async def test_request_ids(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    mine = await client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "abc-1"})
    assert mine.headers["x-request-id"] == "abc-1"
    made = {(await client.get("/v1/models", headers={"X-Request-Id": bad})).headers["x-request-id"] for bad in ("", "has space", "x" * 129)}
    assert len(made) == 3 and all(len(one) == 32 for one in made)
    assert "abc-1" not in engine.started_ids  # one client cannot collide with another in the engine


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("GET", "/docs", 404), ("GET", "/redoc", 404)):
        response = await client.request(method, path)
        assert response.status_code == status and set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_openapi_describes_the_bodies(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    named = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][named.rpartition("/")[2]]
    assert {"messages", "temperature", "max_completion_tokens"} <= set(schema["properties"]) and schema["required"] == ["messages"]


async def test_api_key_guards_every_route_by_default(engine: FakeEngine) -> None:
    async with serving(engine, api_keys=("first", "k\u00e9y")) as client:
        described = client.app.openapi()["paths"]  # type: ignore[attr-defined]
        paths = [(method.upper(), path) for path, methods in described.items() for method in methods] + [("GET", "/openapi.json")]
        assert len(paths) > 10
        paths += [("POST", "/nope")]
        paths += [*(("GET", path) for path in ("//v1/models", "//health", "/v1/models/", "/HEALTH", "/health/x", "/health/"))]
        wrong = [{"authorization": value} for value in ("Bearer wrong", "first", "Basic first", "Bearer ", "Bearer first,x")]
        for method, path in paths:
            for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"x-api-key": "Bearer first"}, *wrong):
                response = await client.request(method, f"http://test{path}", headers=headers)  # whole: "//health" alone would name a host
                if path in OPEN_PATHS:
                    assert response.status_code in (200, 405), path
                else:
                    assert response.status_code == 401, (method, path, headers)
                    assert response.headers["x-request-id"] and response.headers["www-authenticate"] == "Bearer"
                    assert (await client.head(f"http://test{path}", headers=headers)).status_code == 401
        for value in ("Bearer first", "bearer first", "BEARER k\u00e9y".encode()):
            assert (await client.get("/v1/models", headers={"authorization": value})).status_code == 200
        assert (await client.get("/v1/models", headers={"x-api-key": "first"})).status_code == 200  # as Anthropic's clients send it
        refusals = (await client.get("/metrics", headers={"authorization": "Bearer first"})).text
        assert 'llmx:request_rejections_total{model_name="fake-model",reason="invalid_api_key"}' in refusals
        assert (await client.options("/v1/models")).status_code != 401
    assert engine.started_ids == []


async def test_b125_no_other_origin_is_let_in(client: httpx.AsyncClient) -> None:
    """The default address is this machine's own, and no answer lets a browser's page of another origin read it."""
    assert ServerConfig().host == "127.0.0.1"
    preflight = {"origin": "http://elsewhere.example", "access-control-request-method": "POST"}
    for response in (await client.options("/v1/models", headers=preflight), await client.get("/v1/models", headers=preflight)):
        assert response.status_code not in (401, 500)
        assert not [name for name in response.headers if name.startswith("access-control-")]


async def test_no_key_no_guard(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).status_code == 200
