"""POST /v1/chat/completions against an engine that answers from a script."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

pytestmark = pytest.mark.anyio

HI = [{"role": "user", "content": "hi"}]


async def chat(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"messages": HI, **body})


def events(response: httpx.Response) -> list[Any]:
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


async def prompt_of(client: httpx.AsyncClient, engine: FakeEngine, **body: Any) -> str:
    """The text that the engine was given."""
    seen: list[str] = []
    engine.answer = lambda ids: seen.append(bytes(ids).decode()) or "x"  # type: ignore[func-returns-value]
    response = await chat(client, **body)
    assert response.status_code == 200, response.text
    return seen[0]


async def test_whole_answer_has_the_openai_shape(client: httpx.AsyncClient) -> None:
    body = (await chat(client)).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello world", "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["index"] == 0 and choice["logprobs"] is None
    assert body["usage"]["prompt_tokens"] == len("user: hi\nassistant: ")


async def test_stream_has_role_first_and_one_finish_per_choice(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for chunk in (1, 5, 100):
        engine.chunk = chunk
        whole = (await chat(client, n=2)).json()
        chunks = events(await chat(client, n=2, stream=True, stream_options={"include_usage": True}))
        assert {c["object"] for c in chunks} == {"chat.completion.chunk"} and len({c["id"] for c in chunks}) == 1
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
        for index in (0, 1):
            mine = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(c["delta"].get("content", "") for c in mine) == whole["choices"][index]["message"]["content"]
            assert all("finish_reason" in c for c in mine)
            assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"] and mine[-1]["delta"] == {}


async def test_stream_cut_by_length(client: httpx.AsyncClient) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = (await chat(client, **{name: 1})).json()
        assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 1
    assert events(await chat(client, max_tokens=1, stream=True))[-1]["choices"][0]["finish_reason"] == "length"


async def test_length_cut_inside_a_character(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "👩‍🚀"
    for size in (1, 2, 3):
        whole = (await chat(client, max_tokens=size)).json()
        parts = events(await chat(client, max_tokens=size, stream=True))
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in parts) == whole["choices"][0]["message"]["content"]
        assert whole["usage"]["completion_tokens"] == size and whole["choices"][0]["finish_reason"] == "length"


async def test_without_max_tokens_the_context_is_filled(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await chat(client)
    assert engine.params[0].max_tokens is None
    refused = await chat(client, messages=[{"role": "user", "content": "x" * 300}])
    assert refused.status_code == 400 and "shorten the prompt" in refused.json()["error"]["message"]


async def test_logprobs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "猫 on"
    assert (await chat(client, logprobs=True)).json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    for chunk in (1, 3):
        engine.chunk = chunk
        body = {"logprobs": True, "top_logprobs": 4, "stop": ["on"]}
        whole = (await chat(client, **body)).json()["choices"][0]
        content = whole["logprobs"]["content"]
        assert bytes(b for entry in content for b in entry["bytes"]).decode() == whole["message"]["content"] == "猫 "
        assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -2.0, -3.0, -9999.0]
        streamed = [c["choices"][0]["logprobs"] for c in events(await chat(client, **body, stream=True))]
        assert [entry for part in streamed if part for entry in part["content"]] == content


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
        ({"echo": 1}, "echo"),
    ],
)
async def test_bad_fields(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    response = await chat(client, **body)
    assert response.status_code == 400 and response.json()["error"]["param"] == field
    assert field in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        ["hi"],
        [{"role": "robot", "content": "x"}],
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}],
        [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]}],
        [*HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
        [*HI, {"role": "assistant", "tool_calls": "f"}],
        [{"role": "assistant", "content": "the template refuses this"}],
    ],
)
async def test_bad_messages(client: httpx.AsyncClient, messages: Any) -> None:
    response = await chat(client, messages=messages)
    assert response.status_code == 400 and response.json()["error"]["param"] == "messages"
    assert (await chat(client)).status_code == 200


async def test_ten_thousand_bad_parts_give_a_small_answer(client: httpx.AsyncClient) -> None:
    response = await chat(client, messages=[{"role": "user", "content": [{"type": "x" * 1000}] * 10_000}])
    assert response.status_code == 400 and len(response.content) < 16_384


async def test_text_parts_are_joined(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "system", "tool"):
        assert await prompt_of(client, engine, messages=[{"role": role, "content": parts}]) == f"{role}: a\nb\nassistant: "
    answered = [*HI, {"role": "assistant", "content": parts}, *HI]
    assert await prompt_of(client, engine, messages=answered) == "user: hi\nassistant: a\nb\nuser: hi\nassistant: "


async def test_developer_is_system(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await prompt_of(client, engine, messages=[{"role": "developer", "content": "be brief"}, *HI])).startswith("system: be brief\n")


async def test_history_variants_render_alike(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    plain = await prompt_of(client, engine, messages=[*HI, {"role": "assistant", "content": ""}, *HI])
    for message in ({"content": None}, {"tool_calls": []}, {"content": "", "tool_calls": None, "refusal": None, "audio": None}):
        assert await prompt_of(client, engine, messages=[*HI, {"role": "assistant", **message}, *HI]) == plain


async def test_tool_call_arguments_reach_the_template_parsed(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    seen: list[Any] = []
    engine.chat_template.render = lambda messages, **kwargs: seen.append(messages) or "p"  # type: ignore[method-assign,assignment,func-returns-value]
    for arguments in ('{"k":[1]}', {"k": [1]}):
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        tool = {"role": "tool", "tool_call_id": "c1", "content": "7"}
        assert (await chat(client, messages=[*HI, {"role": "assistant", "content": None, "tool_calls": [call]}, tool])).status_code == 200
    assert seen[0] == seen[1] and seen[0][1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"k": [1]}}
    assert seen[0][2] == {"role": "tool", "tool_call_id": "c1", "content": "7"}


async def test_generation_prompt_and_continuation(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    told = [*HI, {"role": "assistant", "content": "Once"}]
    assert await prompt_of(client, engine, messages=told, continue_final_message=True) == "user: hi\nassistant: Once"
    assert await prompt_of(client, engine, add_generation_prompt=False) == "user: hi\n"
    for body in ({"messages": told, "add_generation_prompt": True}, {"messages": HI}):
        response = await chat(client, continue_final_message=True, **body)
        assert response.status_code == 400 and response.json()["error"]["param"] == "continue_final_message"


async def test_template_arguments(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert "[glad]" in await prompt_of(client, engine, chat_template_kwargs={"mood": "glad"})
    reserved = ("chat_template", "tokenize", "add_generation_prompt", "messages")
    for body in ({"chat_template": "{{ 1 }}"}, *({"chat_template_kwargs": {name: "x"}} for name in reserved)):
        response = await chat(client, **body)
        assert response.status_code == 400, body


async def test_chat_ignores_special_tokens_of_the_tokenizer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    asked: list[bool] = []
    encode = engine.tokenizer.encode
    engine.tokenizer.encode = lambda text, add_special_tokens=True: asked.append(add_special_tokens) or encode(text)  # type: ignore[method-assign,func-returns-value]
    await chat(client)
    await chat(client, add_special_tokens=True)
    await client.post("/v1/completions", json={"prompt": "x"})
    assert asked == [False, True, True]
