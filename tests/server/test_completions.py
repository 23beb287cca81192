"""POST /v1/completions against an engine that answers from a script."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fake_engine import BOS, EOS, VOCAB, FakeEngine

from llmx.errors import QueueFull

pytestmark = pytest.mark.anyio


async def complete(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "abc", **body})


def events(response: httpx.Response) -> list[Any]:
    """The data of each event; [DONE] must be the last and is left out."""
    assert response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


async def test_whole_answer_has_the_openai_shape(client: httpx.AsyncClient) -> None:
    response = await complete(client, max_tokens=50)
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-") and body["model"] == "fake-model"
    assert body["choices"] == [{"index": 0, "text": "hello world", "logprobs": None, "finish_reason": "stop", "stop_reason": None}]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 2}}


async def test_default_is_sixteen_tokens_also_for_null(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "x" * 100
    for body in ({}, {"max_tokens": None}):
        answer = (await complete(client, **body)).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_stream_equals_whole_answer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "ok 👩‍🚀 猫 é!"
    for chunk in (1, 3, 100):
        engine.chunk = chunk
        whole = (await complete(client, max_tokens=100)).json()["choices"][0]
        chunks = events(await complete(client, max_tokens=100, stream=True))
        assert "".join(c["choices"][0]["text"] for c in chunks) == whole["text"] == "ok 👩‍🚀 猫 é!"
        assert not any("\ufffd" in c["choices"][0]["text"] for c in chunks)
        reasons = [c["choices"][0]["finish_reason"] for c in chunks]
        assert reasons[-1] == "stop" and set(reasons[:-1]) <= {None}
        assert all("usage" not in c for c in chunks)


async def test_stop_string_across_tokens(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "red lemon sky"
    whole = (await complete(client, max_tokens=100, stop=["on sk"])).json()["choices"][0]
    chunks = events(await complete(client, max_tokens=100, stop="on sk", stream=True))
    assert whole["text"] == "".join(c["choices"][0]["text"] for c in chunks) == "red lem"
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["stop_reason"] == chunks[-1]["choices"][0]["stop_reason"] == "on sk"


async def test_usage_chunk_comes_once_and_last(client: httpx.AsyncClient) -> None:
    for n in (1, 2):
        whole = (await complete(client, n=n, max_tokens=3)).json()
        chunks = events(await complete(client, n=n, max_tokens=3, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
        assert whole["usage"]["prompt_tokens"] == 3 and whole["usage"]["completion_tokens"] == 3 * n
        assert all(c["usage"] is None and c["choices"] for c in chunks[:-1])


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_no_usage_unless_asked(client: httpx.AsyncClient, options: Any) -> None:
    assert all("usage" not in c for c in events(await complete(client, stream=True, stream_options=options)))


async def test_choices_of_n_and_of_a_batch_are_numbered(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: f"<{bytes(ids).decode()}>"
    body = {"prompt": ["p", "q"], "n": 2, "max_tokens": 50}
    whole = (await complete(client, **body)).json()
    texts = [c["text"] for c in whole["choices"]]
    assert texts == ["<p>", "<p> #1", "<q>", "<q> #1"]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["prompt_tokens"] == 2
    streamed: dict[int, str] = {}
    ends: list[int] = []
    for chunk in events(await complete(client, **body, stream=True)):
        (choice,) = chunk["choices"]
        streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert [streamed[i] for i in range(4)] == texts
    assert sorted(ends) == [0, 1, 2, 3]


async def test_batch_runs_concurrently(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.gate = asyncio.Event()
    task = asyncio.create_task(complete(client, prompt=["a", "b", "c"]))
    async with asyncio.timeout(5):
        while len(engine.running) < 3:
            await asyncio.sleep(0.001)
    engine.gate.set()
    assert (await task).status_code == 200


async def test_token_id_prompts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: str(ids)
    assert (await complete(client, prompt=[1, 2], max_tokens=50)).json()["choices"][0]["text"] == "[1, 2]"
    texts = [c["text"] for c in (await complete(client, prompt=[[1], [2, EOS]], max_tokens=50)).json()["choices"]]
    assert texts == ["[1]", f"[2, {EOS}]"]


@pytest.mark.parametrize(
    "prompt",
    ["", [""], [], [[]], ["a", ""], [VOCAB], [-1], [2**63], [[1, 2], [VOCAB]], [1.5], [True], ["a", 1], [[1], "a"], {"a": 1}, 7, None, [None], [[1, None]]],
)
async def test_bad_prompts_run_nothing(client: httpx.AsyncClient, engine: FakeEngine, prompt: Any) -> None:
    response = await complete(client, prompt=prompt)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "prompt"
    assert engine.started_ids == []
    assert (await complete(client)).status_code == 200


async def test_an_empty_prompt_with_bos_has_one_token(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    encode = engine.tokenizer.encode
    engine.tokenizer.encode = lambda text, add_special_tokens=True: [BOS] * add_special_tokens + encode(text)  # type: ignore[method-assign]
    engine.answer = lambda ids: str(ids)
    for prompt in ("", [""]):
        body = (await complete(client, prompt=prompt, max_tokens=50)).json()
        assert body["usage"]["prompt_tokens"] == 1 and body["choices"][0]["text"] == f"[{BOS}]"
    assert (await complete(client, prompt="", add_special_tokens=False)).status_code == 400


async def test_echo_scores_a_prompt_without_generating(client: httpx.AsyncClient) -> None:
    for stream in (False, True):
        response = await complete(client, prompt="a b c", echo=True, max_tokens=0, logprobs=1, stream=stream)
        assert response.status_code == 200, response.text
        body = events(response)[0] if stream else response.json()
        (choice,) = body["choices"]
        assert choice["text"] == "a b c" and choice["finish_reason"] == "length"
        logprobs = choice["logprobs"]
        assert [len(logprobs[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [5] * 4
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert (await complete(client, prompt="a b c", echo=True, max_tokens=0)).json()["usage"]["completion_tokens"] == 0


async def test_echo_with_generation(client: httpx.AsyncClient) -> None:
    body = {"prompt": "é!", "echo": True, "max_tokens": 2, "logprobs": 0}
    whole = (await complete(client, **body)).json()["choices"][0]
    assert whole["text"] == "é!he"
    assert whole["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "!", "h", "e"]
    assert whole["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]
    assert whole["logprobs"]["top_logprobs"] is None
    chunks = [c["choices"][0] for c in events(await complete(client, **body, stream=True))]
    assert "".join(c["text"] for c in chunks) == whole["text"]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [item for c in chunks for item in c["logprobs"][name]] == whole["logprobs"][name]


async def test_logprobs_of_a_stream_equal_those_of_the_whole(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "猫 sat on"
    for chunk in (1, 4):
        engine.chunk = chunk
        body = {"max_tokens": 40, "logprobs": 4, "stop": ["on"]}
        whole = (await complete(client, **body)).json()["choices"][0]["logprobs"]
        assert len(whole["tokens"]) == len("猫 sat ".encode())
        assert whole["text_offset"][:4] == [3, 3, 3, 4]  # counted from the start of the prompt "abc"
        parts = [c["choices"][0]["logprobs"] for c in events(await complete(client, **body, stream=True))]
        for name in whole:
            assert [item for part in parts for item in part[name]] == whole[name]
        assert min(min(top.values()) for top in whole["top_logprobs"]) == -9999.0  # minus infinity is no JSON


async def test_special_token_takes_no_place_in_text_offset(client: httpx.AsyncClient) -> None:
    logprobs = (await complete(client, max_tokens=50, logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"][-1] == "<|end|>" and logprobs["text_offset"][-1] == 3 + len("hello world")


async def test_prompt_logprobs(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, prompt_logprobs=2)).json()["choices"][0]
    assert choice["prompt_logprobs"][0] is None and len(choice["prompt_logprobs"]) == 3
    assert choice["prompt_logprobs"][1][str(ord("b"))] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert (await complete(client, prompt_logprobs=2, stream=True)).status_code == 400


async def test_context_limits(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    limit = engine.info.max_model_len
    for size, status in ((limit + 1, 400), (limit, 400), (limit - 1, 200)):
        response = await complete(client, prompt="x" * size, max_tokens=1)
        assert response.status_code == status
        if status == 400:
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded" and str(size) in error["message"] and str(limit) in error["message"]
        else:
            assert response.json()["usage"]["prompt_tokens"] == size
    assert (await complete(client, prompt="x" * (limit - 4))).json()["usage"]["completion_tokens"] == 4  # the default of 16 is lowered
    asked = await complete(client, prompt="x" * 200, max_tokens=200)
    assert asked.status_code == 400 and "lower max_tokens to 56" in asked.json()["error"]["message"]


async def test_one_long_prompt_refuses_the_batch(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await complete(client, prompt=["ok", "x" * 300])).status_code == 400
    assert engine.started_ids == []


async def test_error_before_the_first_token_has_its_own_status(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 0
    for stream in (False, True):
        response = await complete(client, stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead" and response.headers["retry-after"]
    engine.error = QueueFull("1024 requests are waiting, which is the limit", retry_after_s=7)
    for stream in (False, True):
        response = await complete(client, stream=stream, prompt=["a", "b"])
        assert response.status_code == 503 and response.headers["retry-after"] == "7"
        assert response.json()["error"]["code"] == "queue_full"
    assert engine.running == {}


async def test_error_inside_a_stream_is_an_event(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 3
    response = await complete(client, stream=True)
    assert response.status_code == 200
    *chunks, last = events(response)
    assert len(chunks) == 3 and last["error"]["message"] and last["error"]["type"] == "server_error"
    engine.error = RuntimeError("secret detail")
    assert "secret" not in json.dumps(events(await complete(client, stream=True))[-1])
    response = await complete(client)
    assert response.status_code == 500 and "secret" not in response.text and response.json()["error"]["type"] == "server_error"


async def test_slow_reader_bounds_what_is_buffered(engine: FakeEngine) -> None:
    """With a reader that takes nothing, generation of a batch stands still instead of filling memory."""
    from llmx.config import EngineConfig
    from llmx_server import create_app

    engine.answer = lambda ids: "x" * 200
    app = create_app(engine, EngineConfig())
    body = json.dumps({"prompt": ["a", "b"], "max_tokens": 200, "stream": True}).encode()
    blocked = asyncio.Event()
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        if message := next(asked, None):
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            blocked.set()
            await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b"", "root_path": "", "scheme": "http"}
    task = asyncio.create_task(app({**scope, "http_version": "1.1", "server": ("t", 80), "client": ("c", 1)}, receive, send))
    await asyncio.wait_for(blocked.wait(), 5)
    for _ in range(300):
        await asyncio.sleep(0)
    assert 0 < engine.counts.generation_tokens < 40
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.running == {} and len(engine.aborted) == 2
