"""Thinking budgets and counts of reasoning tokens, on every route, against a live server that says what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from processes import serve
from tests.cases.echo import install

MODEL = "smollm2-135m-instruct"
# <think> and </think> are three tokens each. The model writes what stands here, position by position; the marker takes the place of the three `no`.
TEXT = "<think> so so so so no no no the answer"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return install(tmp_path_factory.mktemp("echo"))


@pytest.fixture(scope="module")
def url(environ: dict[str, str]) -> Iterator[str]:
    arguments = ("--platform", "echo", "--max-model-len", "1024", "--num-blocks", "400", "--reasoning-parser", "qwen3")
    with serve(*arguments, environ=environ) as running:
        yield running.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def ask(client: openai.OpenAI, budget: int | None, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": TEXT}]
    extra = {} if budget is None else {"thinking_token_budget": budget}
    return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=60, temperature=0, extra_body=extra, **fields)


def test_chat_reasons_no_longer_than_its_budget(client: openai.OpenAI) -> None:
    free = ask(client, None)
    assert free.choices[0].message.reasoning == "so so so so no no no the answer" and free.choices[0].message.content is None
    assert free.usage.completion_tokens_details.reasoning_tokens == free.usage.completion_tokens - 3  # all but <think>
    assert ask(client, -1).choices[0].message == free.choices[0].message
    limited = ask(client, 4)
    assert limited.choices[0].message.reasoning == "so so so so" and limited.choices[0].message.content.strip() == "the answer"
    assert limited.usage.completion_tokens_details.reasoning_tokens == 4
    assert limited.usage.completion_tokens == free.usage.completion_tokens
    none = ask(client, 0)
    assert not getattr(none.choices[0].message, "reasoning", None) and none.usage.completion_tokens_details.reasoning_tokens == 0


def test_the_stream_says_the_same_and_its_counts_grow(client: openai.OpenAI) -> None:
    chunks = list(ask(client, 4, n=2, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
    for index in (0, 1):
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "so so so so"
        assert "".join(delta.content or "" for delta in deltas).strip() == "the answer"
    counts = [chunk.usage.completion_tokens_details.reasoning_tokens for chunk in chunks if chunk.usage]
    assert counts[-1] == 8 and counts[0] < 8


def test_a_form_follows_reasoning_that_was_ended(client: openai.OpenAI) -> None:
    answer = ask(client, 4, extra_headers={}, response_format={"type": "json_object"})
    assert answer.choices[0].message.reasoning == "so so so so" and answer.choices[0].message.content.lstrip().startswith("{")


def test_other_doors(client: openai.OpenAI, url: str) -> None:
    response = client.responses.create(model=MODEL, input=TEXT, max_output_tokens=60, temperature=0, extra_body={"thinking_token_budget": 4})
    assert [item.type for item in response.output] == ["reasoning", "message"] and response.output_text.strip() == "the answer"
    assert response.usage is not None and response.usage.output_tokens_details.reasoning_tokens == 4
    completion = client.completions.create(model=MODEL, prompt=TEXT, max_tokens=60, temperature=0, extra_body={"thinking_token_budget": 4})
    assert completion.choices[0].text.strip() == "<think> so so so so</think> the answer"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as other:
        asked: Any = {"model": MODEL, "max_tokens": 60, "messages": [{"role": "user", "content": TEXT}]}
        raw = other.messages.with_raw_response.create(**asked, thinking={"type": "enabled", "budget_tokens": 4})
        assert "budget_tokens" not in raw.headers.get("Warning", "")
        blocks = raw.parse().content
        assert [(block.type, getattr(block, block.type).strip()) for block in blocks] == [("thinking", "so so so so"), ("text", "the answer")]
        with pytest.raises(anthropic.BadRequestError, match="budget_tokens"):
            other.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 0})


@pytest.mark.parametrize("budget", [-2, 1.5, "many"])
def test_a_budget_that_is_none_is_400(client: openai.OpenAI, budget: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="thinking_token_budget"):
        ask(client, budget)


def test_models_whose_reasoning_cannot_be_ended(environ: dict[str, str]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    for parser, word in (("none", "--reasoning-parser NAME"), ("openai_gptoss", "reasoning_effort")):
        with serve("--platform", "echo", "--max-model-len", "256", "--num-blocks", "100", "--reasoning-parser", parser, environ=environ) as running:
            refused = httpx.post(f"{running.url}/v1/chat/completions", json={**body, "thinking_token_budget": 5}, timeout=60)
            assert refused.status_code == 400 and word in refused.json()["error"]["message"], refused.text
            assert refused.json()["error"]["param"] == "thinking_token_budget"
            taken = httpx.post(f"{running.url}/v1/messages", json={**body, "thinking": {"type": "enabled", "budget_tokens": 5}}, timeout=60)
            assert taken.status_code == 200 and "budget_tokens" in taken.headers["Warning"]
            usage = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()["usage"]
            assert ("completion_tokens_details" in usage) == (parser != "none")
