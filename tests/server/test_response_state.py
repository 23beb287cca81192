"""/v1/responses where things go wrong or are limited: over an engine that a test steers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

from llmx.config import EngineConfig, ServerConfig
from llmx.errors import EngineDead, QueueFull
from llmx_server import create_app
from llmx_server.caller import Caller
from llmx_server.protocol.responses import ResponsesRequest
from llmx_server.response_job import response_job
from llmx_server.response_runs import ResponseRun
from llmx_server.response_store import Record, ResponseStore

PATH = "/v1/responses"
pytestmark = pytest.mark.anyio


async def events_of(client: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.post(PATH, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return told(answer)


def told(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert "[DONE]" not in lines
    return [json.loads(line) for line in lines]


def limited(engine: FakeEngine, **server: Any) -> httpx.AsyncClient:
    app = create_app(engine, EngineConfig(server=ServerConfig(**server)))  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://test")


async def test_failed_is_told_when_it_is_true(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 3
    last = (await events_of(client, {"input": "hi"}))[-1]
    assert (last["type"], last["response"]["status"], last["response"]["error"]["code"]) == ("response.failed", "failed", "server_error")
    assert "signal 9" in last["response"]["error"]["message"] and last["response"]["output"][0]["status"] == "incomplete"
    assert (await client.get(f"{PATH}/{last['response']['id']}")).json() == last["response"]
    whole = await client.post(PATH, json={"input": "hi"})
    assert whole.status_code == 503 and whole.json()["error"]["code"] == "engine_dead"


async def test_what_is_refused_before_the_first_step_has_its_status(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at, engine.error = 0, QueueFull("the queue is full: 4 requests wait (--max-num-queued-reqs)")
    for stream in (False, True):
        answer = await client.post(PATH, json={"input": "hi", "stream": stream})
        assert answer.status_code == 503 and "retry-after" in answer.headers
    created = (await client.post(PATH, json={"input": "hi", "background": True})).json()
    await asyncio.sleep(0.05)
    later = (await client.get(f"{PATH}/{created['id']}")).json()
    assert (later["status"], later["error"]["code"]) == ("failed", "rate_limit_exceeded")


async def test_cancel_stops_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()
    created = (await client.post(PATH, json={"input": "hi", "background": True})).json()
    follower = asyncio.create_task(client.get(f"{PATH}/{created['id']}?stream=true"))
    refused = await client.post(PATH, json={"input": "more", "previous_response_id": created["id"]})
    assert refused.status_code == 400 and "queued" in refused.json()["error"]["message"]
    await asyncio.sleep(0.02)
    assert engine.running and not engine.aborted
    cancelled = (await client.post(f"{PATH}/{created['id']}/cancel")).json()
    assert cancelled["status"] == "cancelled" and len(engine.aborted) == 1 and not engine.running
    assert [event["type"] for event in told(await follower)] == ["response.created", "response.queued"]
    assert (await client.post(f"{PATH}/{created['id']}/cancel")).json() == cancelled == (await client.get(f"{PATH}/{created['id']}")).json()


async def test_cancelled_before_it_began(engine: FakeEngine) -> None:
    app = create_app(engine, EngineConfig())  # type: ignore[arg-type]
    body = ResponsesRequest(input="hi", background=True)
    job, form, _ = await response_job(app.state.models.default, body, [{"role": "user", "content": "hi"}])
    run = ResponseRun.start(app.state.models.default, body, "m", job, form, [], app.state.responses)
    run.in_background()
    assert run.record.task is not None
    run.record.task.cancel()
    await asyncio.wait((run.record.task,))
    assert run.record.response["status"] == "cancelled" and run.record.size > 0 and not engine.params


async def test_deleting_one_that_runs_stops_it(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()
    created = (await client.post(PATH, json={"input": "hi", "background": True})).json()
    await asyncio.sleep(0.01)
    assert (await client.delete(f"{PATH}/{created['id']}")).json() == {"id": created["id"], "object": "response", "deleted": True}
    assert len(engine.aborted) == 1 and (await client.get(f"{PATH}/{created['id']}")).status_code == 404


async def test_a_server_that_keeps_none(engine: FakeEngine) -> None:
    async with limited(engine, response_store_bytes=0) as client:
        made = await client.post(PATH, json={"input": "hi"})
        assert made.status_code == 200 and made.json()["store"] is False
        assert "keeps none" in (await client.get(f"{PATH}/{made.json()['id']}")).json()["error"]["message"]
        for name in ("store", "background"):
            refused = await client.post(PATH, json={"input": "hi", name: True})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == name and "--response-store-bytes" in refused.text


async def test_the_size_limit_holds(engine: FakeEngine) -> None:
    async with limited(engine, response_store_bytes=6000) as client:
        ids = [(await client.post(PATH, json={"input": str(number)})).json()["id"] for number in range(8)]
        there = [(await client.get(f"{PATH}/{one}")).status_code for one in ids]
        assert there == sorted(there, reverse=True) and there[0] == 404 and there[-1] == 200  # the oldest went
        large = (await client.post(PATH, json={"input": "x", "instructions": "y" * 200, "metadata": {str(n): "z" * 500 for n in range(15)}})).json()
        assert (await client.get(f"{PATH}/{large['id']}")).status_code == 404


def test_age_counts_from_the_last_use() -> None:
    now = 0.0
    store = ResponseStore(10_000, 60, lambda: now)
    records = [Record({"id": name, "status": "completed"}, []) for name in ("a", "b")]
    for record in records:
        store.open(record)
        store.settle(record)
    assert store.bytes == sum(record.size for record in records) > 0
    now = 50
    store.get("a", Caller())
    now = 100
    assert store.get("a", Caller()) is records[0] and len(store) == 1 and store.bytes == records[0].size
    now = 161
    running = Record({"id": "c", "status": "in_progress"}, [])
    store.open(running)
    now = 1000
    assert store.get("c", Caller()) is running and len(store) == 1 and store.bytes == 0


async def test_sampling_fields_reach_the_engine_as_from_chat(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5,
        "seed": 3, "logit_bias": {"7": 1.5}, "allowed_token_ids": [1, 2, 256], "bad_words": ["a"], "min_tokens": 2, "stop": ["zz"], "stop_token_ids": [9],
        "include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False, "structured_outputs": {"choice": ["a", "b"]},
    }  # fmt: skip
    assert (await client.post(PATH, json={"input": "hi", "max_output_tokens": 9, **fields})).status_code == 200
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, **fields}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    assert engine.params[0] == engine.params[1] and engine.params[0].top_k == 7


async def test_ids_and_tiers(client: httpx.AsyncClient) -> None:
    made = await client.post(PATH, json={"input": "hi", "request_id": "mine", "service_tier": "flex"})
    assert made.json()["id"] == "resp_mine" and made.json()["service_tier"] == "default" and "service_tier" in made.headers["warning"]
    again = await client.post(PATH, json={"input": "hi", "request_id": "mine"})
    assert again.status_code == 400 and again.json()["error"]["param"] == "request_id"
    salted = (await client.post(PATH, json={"input": "hi", "cache_salt": "x" * 129})).json()["error"]
    assert salted["param"] == "cache_salt"


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"input": []}, "input", "empty"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input", "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1/x"}]}]}, "input", "text only"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input", "previous_response_id"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input", "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "{"}]}, "input", "not valid JSON"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"max_output_tokens": 10_000}, "max_output_tokens", "lower max_output_tokens"),
        ({"input": "x" * 400}, "input", "context"),
        ({"truncation": "middle"}, "truncation", "auto or disabled"),
        ({"include": ["everything"]}, "include", "everything"),
        ({"background": True, "store": False}, "background", "stored"),
        ({"metadata": {"k": "v" * 513}}, "metadata", "512"),
        ({"text": {"verbosity": "low"}}, "text", "text.verbosity"),
        ({"text": {"format": {"type": "grammar"}}}, "text", "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text", "text.format.schema"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning", "reasoning.effort"),
        ({"reasoning": {"depth": 1}}, "reasoning", "reasoning.depth"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools", "tools[0].name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice", "allowed_tools"),
        ({"top_logprobs": 21}, "top_logprobs", "0..20"),
        ({"temperature": 3}, "temperature", "temperature"),
        ({"chat_template_kwargs": {"chat_template": "{{ 7 }}"}}, "chat_template_kwargs", "chat_template"),
        ({"previous_response_id": "resp_0"}, "previous_response_id", "not here"),
    ],
)
async def test_bad_input_is_named_in_this_apis_words(client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str, text: str) -> None:
    answer = await client.post(PATH, json={"input": "hi", **fields})
    error = answer.json()["error"]
    assert answer.status_code in (400, 404) and error["param"] == param and text in error["message"], error
    assert not engine.params


async def test_what_changes_nothing_is_named(client: httpx.AsyncClient) -> None:
    body = {"input": "hi", "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "stream_options": {"include_obfuscation": True}}
    warning = (await client.post(PATH, json={**body, "stream": True, "nonsense": 1})).headers["warning"]
    for name in ("reasoning.summary", "reasoning.encrypted_content", "include_obfuscation", "nonsense (unknown)"):
        assert name in warning


@pytest.mark.parametrize("query", ["starting_after=1", "stream=true&starting_after=x", "stream=true&starting_after=-5"])
async def test_queries_are_checked(client: httpx.AsyncClient, query: str) -> None:
    made = (await client.post(PATH, json={"input": "hi", "background": True})).json()
    answer = await client.get(f"{PATH}/{made['id']}?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "starting_after"


async def test_a_client_that_goes_away_leaves_nothing(engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()
    app = create_app(engine, EngineConfig())  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        for stream in (False, True):
            asked = asyncio.create_task(client.post(PATH, json={"input": "hi", "stream": stream}))
            await asyncio.sleep(0.02)
            assert engine.running and len(app.state.responses) == 1
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await asyncio.sleep(0.02)
            assert not engine.running and len(app.state.responses) == 0
    assert isinstance(engine.error, EngineDead) and len(engine.aborted) == 2


async def test_a_stream_after_its_last_event_is_empty(client: httpx.AsyncClient) -> None:
    made = (await client.post(PATH, json={"input": "hi", "background": True})).json()
    answer = await client.get(f"{PATH}/{made['id']}?stream=true&starting_after=33018")
    assert answer.status_code == 200 and answer.content == b""
