"""Public bugs of other engines, part F: Anthropic's API, with its own client against a live server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import anthropic
import httpx
import pytest

from tests.cases.conftest import Api
from tests.cases.echo import install
from tests.server.processes import serve

MESSAGES = "/v1/messages"
WEATHER = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A model that thinks, calls, and says what it is told."""
    arguments = ("--platform", "echo", "--max-model-len", "1024", "--num-blocks", "400", "--reasoning-parser", "qwen3", "--api-key", "k")
    with serve(*arguments, environ=install(tmp_path_factory.mktemp("echo"))) as running:
        yield running.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with closing(anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)) as client:
        yield client


@pytest.fixture(scope="module")
def api(url: str) -> Iterator[Api]:
    with closing(Api(url)) as api:
        api.http.headers["x-api-key"] = "k"
        yield api


def body(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2-135m-instruct", "max_tokens": 120, "messages": [{"role": "user", "content": text}], **fields}


def test_a_plain_answer(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**body("hello there"), system="Be brief.")
    assert [(block.type, block.text) for block in message.content] == [("text", "hello there")]
    assert (message.stop_reason, message.role, message.type) == ("end_turn", "assistant", "message") and message.id.startswith("msg")
    assert message.usage.output_tokens == 3 and message.usage.input_tokens > 10


def test_b018_stop_reasons(client: anthropic.Anthropic) -> None:
    assert client.messages.create(**body("one two three four", max_tokens=2)).stop_reason == "max_tokens"
    stopped = client.messages.create(**body("red lemon sky", stop_sequences=["on sk"]))
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "on sk", "red lem")


@pytest.mark.parametrize("tools", [None, [WEATHER]])
def test_b116_blocks_of_a_stream(client: anthropic.Anthropic, tools: Any) -> None:
    """Thinking, text, a call, text: each block starts, has deltas of its own kind, and stops before the next."""
    text = f"<think>I wonder.</think>Let me see.{CALL}Done."
    fields = body(text, **({"tools": tools} if tools else {}))
    whole = client.messages.create(**fields)
    open_kind, index, kinds = None, -1, []
    with client.messages.stream(**fields) as stream:
        for event in stream:
            if event.type == "content_block_start":
                assert open_kind is None and event.index == index + 1
                open_kind, index = event.content_block.type, event.index
                kinds.append(open_kind)
            elif event.type == "content_block_delta":
                wanted = {"text": "text_delta", "thinking": ("thinking_delta", "signature_delta"), "tool_use": "input_json_delta"}[str(open_kind)]
                assert event.delta.type in wanted and event.index == index
            elif event.type == "content_block_stop":
                open_kind = None
        streamed = stream.get_final_message()
    assert kinds == (["thinking", "text", "tool_use", "text"] if tools else ["thinking", "text"])
    assert streamed.stop_reason == whole.stop_reason == ("tool_use" if tools else "end_turn")
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    texts = ["".join(getattr(block, "text", "") for block in message.content) for message in (streamed, whole)]
    assert texts[0] == texts[1]
    if tools:
        assert [block.input for block in streamed.content if block.type == "tool_use"] == [{"city": "Rome"}]


@pytest.mark.parametrize(("choice", "name"), [({"type": "any"}, "get_weather"), ({"type": "tool", "name": "get_weather"}, "get_weather")])
def test_calls_that_are_forced(client: anthropic.Anthropic, choice: Any, name: str) -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]' if choice["type"] == "any" else '{"city": "Oslo"}'
    message = client.messages.create(**body(text, tools=[WEATHER], tool_choice=choice))
    (block,) = message.content
    assert (block.type, block.name, block.input, message.stop_reason) == ("tool_use", name, {"city": "Oslo"}, "tool_use")


def test_b117_blocks_of_a_request(api: Api) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    lines = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [thought, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": lines, "is_error": True}]},
    ]
    counted = api.post(f"{MESSAGES}/count_tokens", {"model": "smollm2-135m-instruct", "messages": messages, "system": [{"type": "text", "text": "s"}]})
    same = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "Error: x\ny"},
    ]
    chat = api.post("/v1/chat/completions", {"messages": same, "max_tokens": 1}).json()
    assert counted.json() == {"input_tokens": chat["usage"]["prompt_tokens"]}


def test_an_answer_that_is_begun(client: anthropic.Anthropic) -> None:
    """Prefill: the answer goes on where the assistant's last message ends."""
    fields = body("yes")
    fields["messages"].append({"role": "assistant", "content": "I say"})
    assert client.messages.create(**fields).stop_reason in ("end_turn", "max_tokens")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "text only"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "movie"}]}]}]}, "movie"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"thinking": {"type": "maybe"}}, "thinking"),
    ],
)
def test_errors_in_anthropics_shape(api: Api, fields: dict[str, Any], word: str) -> None:
    answer = api.post(MESSAGES, {**body("a"), **fields})
    assert answer.status_code == 400
    error = answer.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error" and word in error["error"]["message"]


def test_statuses(url: str, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(**body("a"))
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**body("a"), "model": "other"})
    bearer = httpx.post(f"{url}{MESSAGES}", json=body("a"), headers={"Authorization": "Bearer k"}, timeout=60)
    assert bearer.status_code == 200
    assert json.loads(httpx.post(f"{url}{MESSAGES}", json=body("a")).content)["error"]["type"] == "authentication_error"


def test_what_fails_before_its_first_token_has_a_status_streamed_or_not(api: Api) -> None:
    """Token 13 is a prompt that fails in the forward."""
    nan = api.post("/detokenize", {"tokens": [13]}).json()["prompt"]
    for stream in (False, True):
        answer = api.post(MESSAGES, body(nan, stream=stream))
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "api_error" and "NaN" in answer.json()["error"]["message"]


def test_a_stream_that_fails_ends_with_an_error_event(api: Api) -> None:
    """Token 14 is a prompt that fails in its answer, after the first token."""
    later = api.post("/detokenize", {"tokens": [14]}).json()["prompt"]
    with api.http.stream("POST", MESSAGES, json=body(f"one two {later} three", stream=True)) as stream:
        assert stream.status_code == 200
        text = stream.read().decode()
    assert text.startswith("event: message_start\n") and '"text_delta"' in text
    assert text.count("event: error\n") == 1 and text.rindex("event: ") == text.index("event: error\n")
    assert "message_stop" not in text and "[DONE]" not in text


def test_what_is_ignored_is_named(api: Api) -> None:
    answer = api.post(MESSAGES, body("a", metadata={"user_id": "u"}, foo=1))
    assert answer.status_code == 200
    assert all(word in answer.headers["Warning"] for word in ("metadata", "foo"))
