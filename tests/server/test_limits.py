"""Limits of a key: what is counted, how a request above them is answered on each door, and that one key's use is none of another's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from in_process import serving
from processes import HANG_S

from llmx.errors import ConfigError, QueueFull
from llmx_server.errors import RateLimited
from llmx_server.keys import KeyRing, new_key
from llmx_server.limits import Limits, Meter

pytestmark = pytest.mark.anyio
LONG = 1_000_000


@asynccontextmanager
async def limited(engine: FakeEngine, folder: Path, rpm: int = 0, tpm: int = 0, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client that shows a key with these limits; `client.other` is a key without any."""
    (key, line), (other, plain) = new_key("ann", ("generate", "embed"), Limits(rpm, tpm)), new_key("ben", ("generate", "embed"))
    (folder / "keys").write_text(f"{line}\n{plain}\n")
    async with serving(engine, api_key_file=str(folder / "keys"), **options) as client:
        client.headers["authorization"] = f"Bearer {key}"
        client.other = {"authorization": f"Bearer {other}"}  # type: ignore[attr-defined]
        yield client


def left(answer: httpx.Response, kind: str = "tokens") -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{kind}"])


def test_a_bucket_fills_evenly_and_the_last_one_let_in_may_take_more_than_is_left() -> None:
    now = 0.0
    meter = Meter("ann", Limits(rpm=2, tpm=600), lambda: now)
    meter.admit(100)
    meter.admit(400)
    with pytest.raises(RateLimited, match="'ann' may use 2 requests a minute: try again in 30 s") as refused:
        meter.admit(1)
    assert (refused.value.kind, refused.value.retry_after_s) == ("requests", 30)
    assert meter.headers()["x-ratelimit-remaining-tokens"] == "100"  # one that is refused counts nothing
    now = 30
    meter.admit(1000)  # 400 were there
    assert meter.headers() == {
        "x-ratelimit-limit-requests": "2", "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "60.000s",
        "x-ratelimit-limit-tokens": "600", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120.000s",
    }  # fmt: skip
    now = 60.05
    with pytest.raises(RateLimited, match="600 tokens a minute: try again in 31 s"):
        meter.check()
    now = LONG
    assert meter.headers()["x-ratelimit-remaining-tokens"] == "600"  # no more than a minute's worth is saved up


async def test_what_is_counted_to_the_token(engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that stands still: whole answers, streams, one that its client leaves, one that the engine refuses, one that is not valid."""
    monkeypatch.setattr("llmx_server.callers.Meter", lambda name, limits, **more: Meter(name, limits, lambda: 0.0, **more))
    async with limited(engine, tmp_path, rpm=100, tpm=LONG) as client:

        async def spent(requests: int) -> int:
            answer = await client.get("/v1/models")
            assert left(answer, "requests") == 100 - requests
            return LONG - left(answer)

        assert await spent(0) == 0
        usage = (await client.post("/v1/completions", json={"prompt": "abc", "n": 2, "max_tokens": 4})).json()["usage"]
        assert await spent(1) == usage["total_tokens"] == 3 + 8
        streamed = await client.post("/v1/completions", json={"prompt": ["abc", "de"], "max_tokens": 4, "stream": True})
        assert streamed.status_code == 200 and await spent(2) == 11 + 5 + 8
        chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "stream_options": {"include_usage": True}}
        told = await client.post("/v1/chat/completions", json=chat)
        used = json.loads(told.text.split("data: ")[-2])["usage"]["total_tokens"]
        assert await spent(3) == 24 + used
        for body in ({"prompt": "abc", "max_tokens": -1}, {"prompt": "x" * 300}):
            assert (await client.post("/v1/completions", json=body)).status_code == 400
        engine.fail_at, engine.error = 0, QueueFull("the queue is full (--max-num-queued-reqs)")
        assert (await client.post("/v1/completions", json={"prompt": "abcdef"})).status_code == 503
        assert await spent(4) == 24 + used  # its prompt was not computed
        engine.fail_at = None
        engine.answer, engine.delay_s = (lambda ids: "x" * 200), 0.01
        task = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "abc", "max_tokens": 200, "stream": True}))
        for _ in range(HANG_S * 100):
            await asyncio.sleep(0.01)
            if engine.running and await spent(5) > 24 + used + 3 + 5:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(engine.aborted) >= 1 and 24 + used + 8 < await spent(5) < 24 + used + 3 + 200


@pytest.mark.parametrize("stream", [False, True])
async def test_each_door_says_it_in_its_own_words(engine: FakeEngine, tmp_path: Path, stream: bool) -> None:
    async with limited(engine, tmp_path, rpm=1) as client:
        chat = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": 4}
        first = await client.post("/v1/chat/completions", json=chat)
        assert first.status_code == 200 and left(first, "requests") == 0
        bodies = {"/v1/chat/completions": chat, "/v1/completions": {"prompt": "a", "stream": stream}, "/v1/responses": {"input": "a", "stream": stream}}
        for path, body in bodies.items():
            answer = await client.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"], error["param"]) == (429, "requests", "rate_limit_exceeded", None), path
            assert 1 <= int(answer.headers["retry-after"]) <= 60 and answer.headers["x-ratelimit-limit-requests"] == "1" and left(answer, "requests") == 0
        background = await client.post("/v1/responses", json={"input": "a", "background": True, "stream": stream})
        assert background.status_code == 429  # and not a response that has failed
        answer = await client.post("/v1/messages", json=chat)
        assert answer.status_code == 429 and answer.json()["type"] == "error" and answer.json()["error"]["type"] == "rate_limit_error"
        assert "retry-after" in answer.headers
        refused = (await client.get("/metrics")).text  # what is no work for the engine is not limited
        assert 'llmx:request_rejections_total{model_name="fake-model",reason="rate_limit_exceeded"} 5.0' in refused
        other = await client.post("/v1/chat/completions", json=chat, headers=client.other)  # type: ignore[attr-defined]
        assert other.status_code == 200 and not any(name.startswith("x-ratelimit") for name in other.headers)


async def test_the_openai_package_sees_a_rate_limit(engine: FakeEngine, tmp_path: Path) -> None:
    async with limited(engine, tmp_path, tpm=3) as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
        async with openai.AsyncOpenAI(base_url="http://t/v1", api_key=key, max_retries=0, http_client=client) as user:
            await user.completions.create(model="fake-model", prompt="abc", max_tokens=4)
            with pytest.raises(openai.RateLimitError) as refused:
                await user.completions.create(model="fake-model", prompt="abc", max_tokens=4)
            assert (refused.value.type, refused.value.code) == ("tokens", "rate_limit_exceeded")


async def test_lines_of_a_batch_count_for_their_owner_and_wait(engine: FakeEngine, tmp_path: Path) -> None:
    async with limited(engine, tmp_path, rpm=120, files_dir=str(tmp_path / "kept")) as client:
        batches = client.app.state.batches  # type: ignore[attr-defined]
        lines = [{"custom_id": f"r{at}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 1}} for at in range(122)]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = (await client.post("/v1/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})).json()["id"]
        made = (await client.post("/v1/batches", json={"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})).json()
        try:
            for _ in range(HANG_S * 50):
                batch = (await client.get(f"/v1/batches/{made['id']}")).json()
                if batch["status"] == "completed":
                    break
                await asyncio.sleep(0.02)
            assert batch["request_counts"] == {"total": 122, "completed": 122, "failed": 0}
            assert left(await client.get("/v1/models"), "requests") < 60
            assert "rate_limit_exceeded" not in (await client.get("/metrics")).text  # to wait for one's own limit is no rejection
        finally:
            await batches.close()


def test_limits_in_the_file(tmp_path: Path) -> None:
    key, line = new_key("ann", ("generate",), Limits(60, 1000))
    assert line.startswith("ann generate rpm=60 tpm=1000 ")
    file = tmp_path / "keys"
    file.write_text(line + "\n")
    found = KeyRing((), str(file)).find(key.encode())
    assert found is not None and found.limits == Limits(60, 1000)
    budgets = ("budget=5", "budget=0/day", "budget=5/week", "budget=/day")
    for words in ("rpm=0", "rpm=x", "rpm=1 rpm=2", "tps=5", "rpm=-1", "rpm=1.5", "rpm", "tpm=9999999999999", *budgets):
        file.write_text(line.replace("rpm=60 tpm=1000", words) + "\n")
        with pytest.raises(ConfigError, match="is no limit: rpm=N, tpm=N and budget=N/PERIOD"):
            KeyRing((), str(file))
    with pytest.raises(ConfigError, match="is no limit"):
        new_key("ann", ("generate",), Limits(-1, 0))
