"""The same answers by other paths: several conversations in one request, and SageMaker's /ping and /invocations."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

from llmx.config import EngineConfig, ServerConfig
from llmx_server import create_app

pytestmark = pytest.mark.anyio
CHAT, BATCH = "/v1/chat/completions", "/v1/chat/completions/batch"


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_one_choice_for_each_conversation(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: f"{len(ids)} bytes"
    fields = {"max_tokens": 20, "logprobs": True, "return_token_ids": True, "seed": 3}
    texts = ["a", "bbb", "cc"]
    whole = (await client.post(BATCH, json={"messages": [says(text) for text in texts], **fields, "user": "x"})).json()
    alone = [(await client.post(CHAT, json={"messages": says(text), **fields})).json() for text in texts]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2] and whole["object"] == "chat.completion"
    for choice, one in zip(whole["choices"], alone, strict=True):
        assert choice == {**one["choices"][0], "index": choice["index"], "prompt_token_ids": one["prompt_token_ids"]}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole["usage"][name] == sum(one["usage"][name] for one in alone)
    assert len(set(engine.started_ids)) == 6


async def test_fields_count_for_all_and_warnings_come_once(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = await client.post(BATCH, json={"messages": [says("a"), says("b")], "response_format": {"type": "json_object"}, "user": "x", "nonsense": 1})
    assert answer.status_code == 200 and answer.headers["warning"].count("user") == 1 and "nonsense (unknown)" in answer.headers["warning"]
    assert all(params.structured_outputs for params in engine.params)


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"stream": True}, "stream", "one by one"),
        ({"n": 2}, "n", "one by one"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "one by one"),
        ({"messages": []}, "messages", "1 to 1024"),
        ({"messages": says("flat")}, "messages", "messages[0]"),
        ({"messages": [says("a"), []]}, "messages", "empty"),
        ({"messages": [says("a"), says("x" * 300)]}, "prompt", "context"),
        ({"use_beam_search": True}, "use_beam_search", "one by one"),
    ],
)
async def test_nothing_runs_when_one_is_wrong(client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, text: str) -> None:
    answer = await client.post(BATCH, json={"messages": [says("a")], **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and text in error["message"] and not engine.params


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": says("hi"), "max_tokens": 5}, CHAT),
        ({"prompt": "hi", "max_tokens": 5}, "/v1/completions"),
        ({"input": "hi", "max_output_tokens": 20}, "/v1/responses"),
    ],
)
async def test_invocations_answer_as_the_route_does(client: httpx.AsyncClient, body: dict[str, Any], path: str) -> None:
    found, wanted = [(await client.post(one, json=body)).json() for one in ("/invocations", path)]
    assert found["object"] == wanted["object"] and found["usage"] == wanted["usage"]
    assert found.get("choices") == wanted.get("choices") and len(found.get("output", [])) == len(wanted.get("output", []))
    wrong, same = [await client.post(one, json={**body, "temperature": 9}) for one in ("/invocations", path)]
    assert wrong.status_code == 400 and wrong.json() == same.json()


async def test_invocations_stream(client: httpx.AsyncClient) -> None:
    answer = await client.post("/invocations", json={"messages": says("hi"), "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("data", [b"{}", b"[]", b"{", b'{"documents": ["x"]}'])
async def test_what_fits_no_route(client: httpx.AsyncClient, data: bytes) -> None:
    answer = await client.post("/invocations", content=data, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


async def test_ping_needs_no_key_and_invocations_do(engine: FakeEngine) -> None:
    app = create_app(engine, EngineConfig(server=ServerConfig(api_keys=("k",))))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        for method in ("GET", "POST"):
            assert (await client.request(method, "/ping")).status_code == 200
        for path in ("/invocations", BATCH, "/v1/responses", "/v1/files", "/v1/batches"):
            assert (await client.post(path, json={"messages": says("hi")})).status_code == 401
        engine.alive = False
        assert (await client.get("/ping")).status_code == 503
