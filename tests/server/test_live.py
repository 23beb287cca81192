"""`llmx serve` as a user starts it: the embedded model in an engine process, over a real socket.

On the CPU platform where it is installed; the null platform otherwise, whose answers are deterministic but mean nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from processes import Server, children, gauges, serve, until

from llmx.config import PlatformConfig
from llmx.hooks.loader import PluginLoader

MODEL = "smollm2-135m-instruct"
PRESENT = {probe.name for probe in PluginLoader.discover(PlatformConfig()).probe_all({}) if probe.detection and probe.detection.present}
PLATFORM = "cpu" if "cpu" in PRESENT else "null"
ARGUMENTS = ("--platform", PLATFORM, "--threads", "1", "--max-model-len", "1024", "--kv-cache-memory-bytes", "64Mi", "--recovery-timeout", "60")


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with serve(*ARGUMENTS) as running:
        yield running
        running.process.send_signal(signal.SIGTERM)
        code, err = running.end()
        assert code == 0 and "Traceback" not in err


@pytest.fixture
def client(live: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_summary_tells_what_a_user_wants_to_know(live: Server) -> None:
    told = (MODEL, f"platform  {PLATFORM} on ", "requests of full length fit", "--threads 1 (flag)", live.url, "curl ")
    for text in (*told, f"page      {live.url}/ for a browser: chat"):
        assert text in live.summary


def test_chat(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model=MODEL, messages=question, temperature=0, max_tokens=24)  # type: ignore[arg-type]
    with client.chat.completions.create(model=MODEL, messages=question, temperature=0, max_tokens=24, stream=True) as stream:  # type: ignore[arg-type]
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == answer.choices[0].message.content
    if PLATFORM == "cpu":
        assert "Paris" in streamed
        default = client.chat.completions.create(model=MODEL, messages=question)  # type: ignore[arg-type]
        assert "Paris" in (default.choices[0].message.content or "") and default.choices[0].finish_reason == "stop"


def test_completion_with_everything(client: openai.OpenAI) -> None:
    body = {"model": MODEL, "prompt": ["Once upon a time", "The sky is"], "max_tokens": 8, "n": 2, "seed": 3, "logprobs": 2, "echo": True}
    whole = client.completions.create(**body)  # type: ignore[call-overload]
    assert whole.usage.completion_tokens <= 32 and len(whole.choices) == 4
    texts, tokens = [""] * 4, [[] for _ in range(4)]
    with client.completions.create(**body, stream=True) as stream:  # type: ignore[call-overload]
        for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert texts[0].startswith("Once upon a time") and texts[3].startswith("The sky is")


def test_scoring_without_generating(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="a b c", echo=True, max_tokens=0, logprobs=1).choices[0]
    assert choice.text == "a b c" and choice.finish_reason == "length" and choice.logprobs
    assert choice.logprobs.token_logprobs and choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    longer = client.completions.create(model=MODEL, prompt="a b c", echo=True, max_tokens=1, logprobs=1).choices[0]
    assert longer.logprobs and longer.logprobs.token_logprobs
    assert longer.logprobs.token_logprobs[:3] == pytest.approx(choice.logprobs.token_logprobs, nan_ok=False) or PLATFORM == "null"
    assert len(longer.logprobs.token_logprobs) == 4


def test_stop_logit_bias_and_limits(client: openai.OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt="Count: one, two,", temperature=0, max_tokens=12).choices[0].text
    cut = client.completions.create(model=MODEL, prompt="Count: one, two,", temperature=0, max_tokens=12, stop=[plain[3:6]]).choices[0]
    assert cut.text == plain[: plain.index(plain[3:6])] and cut.finish_reason == "stop"
    forced = client.completions.create(model=MODEL, prompt="x", temperature=0, max_tokens=3, logit_bias={"260": 100})
    assert len(set(forced.choices[0].text.split())) == 1
    with pytest.raises(openai.BadRequestError, match="49152 tokens"):
        client.completions.create(model=MODEL, prompt="x", logit_bias={"49152": 1})
    with pytest.raises(openai.BadRequestError, match="1024"):
        client.completions.create(model=MODEL, prompt="x " * 2000)


def test_fifty_streams_end_right_and_free_everything(live: Server) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> list[str]:
        body = {"messages": [{"role": "user", "content": f"Tell me about the number {number}."}], "max_tokens": 8, "stream": True, "seed": number}
        async with client.stream("POST", f"{live.url}/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            return [line async for line in response.aiter_lines() if line]

    async def all_of_them() -> list[list[str]]:
        async with httpx.AsyncClient(timeout=120) as client:
            return await asyncio.gather(*(one(client, number) for number in range(50)))

    for lines in asyncio.run(all_of_them()):
        assert lines[-1] == "data: [DONE]"
        assert sum('"finish_reason":"' in line for line in lines) == 1
    until(lambda: gauges(live.url)["llmx:num_requests_running"] == 0)
    assert gauges(live.url)["llmx:kv_cache_usage_perc"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_frees_the_request(live: Server, stream: bool) -> None:
    async def leave() -> None:
        body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": stream, "n": 4}
        async with httpx.AsyncClient() as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3), client.stream("POST", f"{live.url}/v1/completions", json=body) as response:
                    async for _ in response.aiter_bytes():
                        pass

    before = gauges(live.url)["llmx:generation_tokens_total"]
    asyncio.run(leave())
    until(lambda: gauges(live.url)["llmx:num_requests_running"] == 0)
    after = gauges(live.url)
    assert after["llmx:kv_cache_usage_perc"] == 0
    if PLATFORM == "cpu":
        assert after["llmx:generation_tokens_total"] - before < 4000


def test_sigterm_drains_the_engine() -> None:
    with serve(*ARGUMENTS) as running:
        engine_process = children(running.process)
        assert len(engine_process) == 1
        seen: list[str] = []

        def read() -> None:
            body = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as response:
                seen.extend(line for line in response.iter_lines() if line)

        thread = threading.Thread(target=read)
        thread.start()
        until(lambda: seen or not thread.is_alive())
        running.process.send_signal(signal.SIGTERM)
        thread.join(60)
        code, err = running.end()
    assert code == 0 and "Traceback" not in err
    assert seen[-1] == "data: [DONE]" and '"finish_reason":"length"' in seen[-2]
    assert not Path(f"/proc/{engine_process[0]}").exists()


def test_death_of_the_engine_is_seen() -> None:
    with serve(*ARGUMENTS) as running:
        assert httpx.get(f"{running.url}/health").status_code == 200
        (engine_process,) = children(running.process)
        os.kill(engine_process, signal.SIGKILL)
        until(lambda: httpx.get(f"{running.url}/health").status_code == 503, 10)
        response = httpx.post(f"{running.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=20)
        assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] <= 2  # another engine answers
        assert httpx.get(f"{running.url}/health").status_code == 200
        assert children(running.process) != [engine_process]
        running.process.send_signal(signal.SIGTERM)
        assert running.end()[0] == 0
