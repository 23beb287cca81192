"""Public bugs of other engines, part A: tool calls and reasoning, streamed and whole, wherever the answer is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from tests.cases.conftest import Api
from tests.cases.echo import install
from tests.server.processes import serve

CHAT = "/v1/chat/completions"
ROOM = ("--max-model-len", "1024", "--num-blocks", "400")  # tools make prompts longer
PING = {"type": "function", "function": {"name": "ping"}}
NAMED = {"type": "function", "function": {"name": "ping"}}


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with serve("--platform", "echo", *ROOM, environ=install(tmp_path_factory.mktemp("echo"))) as running, closing(Api(running.url)) as api:
        yield api


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The echo platform as a model that thinks and calls."""
    formats = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes")
    environ = install(tmp_path_factory.mktemp("thinking"))
    with serve("--platform", "echo", *ROOM, *formats, environ=environ) as running, closing(Api(running.url)) as api:
        yield api


def tool(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def gathered(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as the message that a client puts together; ids, types and names come once, with the first part of a call."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            message["reasoning"] += choice["delta"].get("reasoning") or ""
            for call in choice["delta"].get("tool_calls") or []:
                if call["index"] == len(message["calls"]):
                    assert call["id"] and call["type"] == "function"
                    message["calls"].append([call["function"]["name"], ""])
                else:
                    assert "id" not in call and "type" not in call and "name" not in call["function"]
                message["calls"][call["index"]][1] += call["function"]["arguments"]
            message["finish_reason"] = choice["finish_reason"] or message["finish_reason"]
    return message


def both(api: Api, text: str, **fields: Any) -> dict[str, Any]:
    """What an answer says, the same streamed and whole."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 120, **fields}
    answer = api.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in choice["message"].get("tool_calls", [])]
    message = choice["message"]
    whole = {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning") or "",
        "calls": calls,
        "finish_reason": choice["finish_reason"],
    }
    assert message.get("reasoning") == message.get("reasoning_content")
    assert gathered(api.stream(CHAT, body)) == whole
    return whole


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_b019_forced_calls_end_alike_in_both_modes(echo: Api, choice: Any, reason: str) -> None:
    """A call forced by name ends with stop, as OpenAI's does."""
    answer = both(echo, '[{"name": "ping", "parameters": {}}]' if choice == "required" else "{}", tools=[PING], tool_choice=choice)
    assert answer == {"content": "", "reasoning": "", "calls": [["ping", "{}"]], "finish_reason": reason}


def test_b020_arguments_arrive_whole(echo: Api) -> None:
    value = {"o": {"k": 'a"b\\c', "n": [1, {}]}}
    tools = [tool("a", {"const": value}), tool("b", {"type": "object", "properties": {"z": {"type": "integer"}}})]
    text = json.dumps([{"name": "a", "parameters": value}, {"name": "b", "parameters": {"z": 1}}])
    answer = both(echo, text, tools=tools, tool_choice="required")
    assert [(name, json.loads(arguments)) for name, arguments in answer["calls"]] == [("a", value), ("b", {"z": 1})]


def test_calls_in_the_models_own_format(echo: Api) -> None:
    text = 'One moment.\n<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>\n<tool_call>{"name": "pong", "arguments": {}}</tool_call>'
    answer = both(echo, text, tools=[PING, tool("pong", {"type": "object"})])
    assert answer == {"content": "One moment.", "reasoning": "", "calls": [["ping", '{"x": 1}'], ["pong", "{}"]], "finish_reason": "tool_calls"}
    one = both(echo, text, tools=[PING, tool("pong", {"type": "object"})], parallel_tool_calls=False)
    assert one["calls"] == [["ping", '{"x": 1}']]


def test_none_and_no_tools_leave_calls_as_text(echo: Api) -> None:
    text = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    for fields in ({}, {"tools": []}, {"tools": None, "tool_choice": None}, {"tools": [PING], "tool_choice": "none"}):
        assert both(echo, text, **fields) == {"content": text, "reasoning": "", "calls": [], "finish_reason": "stop"}


@pytest.mark.parametrize("length", range(1, 16, 2))
def test_b024_a_call_that_is_cut_off(echo: Api, length: int) -> None:
    answer = both(echo, 'Hm. <tool_call>\n{"name": "ping", "arguments": {"a": "b"}}\n</tool_call>', tools=[PING], max_tokens=length)
    assert answer["finish_reason"] == "length" and len(answer["calls"]) <= 1


@pytest.mark.parametrize("calls", [[], None, "same"])
def test_b025_history_of_calls(echo: Api, calls: Any) -> None:
    def prompt(messages: list[dict[str, Any]]) -> list[int]:
        answer = echo.post("/tokenize", {"messages": messages})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["tokens"])

    call = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": '{"a": 1}'}}
    as_object = {**call, "function": {"name": "ping", "arguments": {"a": 1}}}
    user, result = {"role": "user", "content": "go"}, {"role": "tool", "tool_call_id": "c", "content": "pong!"}
    if calls == "same":
        texts = [prompt([user, {"role": "assistant", "content": None, "tool_calls": [one]}, result, user]) for one in (call, as_object)]
        assert texts[0] == texts[1]
        return
    plain = {"role": "assistant", "content": "ok"}
    assert prompt([user, {**plain, "tool_calls": calls}, user]) == prompt([user, plain, user])


@pytest.mark.parametrize("arguments", ["{not json", "[1]", 5])
def test_b025_history_with_bad_arguments_is_refused(echo: Api, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": arguments}}
    body = {"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "x"}]}
    answer = echo.post(CHAT, body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
    echo.alive()


def test_b048_strict_arguments_follow_their_schema(real: Api) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["n", "b"], "additionalProperties": False}
    for choice in ("required", {"type": "function", "function": {"name": "set"}}):
        message = real.chat("Set n to 3 and b to true.", tools=[tool("set", schema, strict=True)], tool_choice=choice, max_tokens=80)["choices"][0]["message"]
        assert message["tool_calls"]
        for call in message["tool_calls"]:
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


def test_strict_calls_with_tool_choice_auto(echo: Api) -> None:
    """The echoed call breaks its schema; held to it, it cannot."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    text = '<tool_call>\n{"name": "set", "arguments": {"n": "three"}}\n</tool_call>'
    free = both(echo, text, tools=[tool("set", schema)])
    assert json.loads(free["calls"][0][1]) == {"n": "three"}
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60, "tools": [tool("set", schema, strict=True)]}
    choice = echo.post(CHAT, body).json()["choices"][0]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert '"three"' not in arguments and arguments.startswith("{")


def test_b122_results_of_tools_are_never_dropped(echo: Api) -> None:
    """SmolLM2's template has no branch for tools: calls and results are written out as text."""
    call = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "pong!"}]
    answer = echo.post(CHAT, {"messages": messages, "tools": [PING], "max_tokens": 40, "temperature": 0, "return_prompt_text": True}).json()
    assert '<tool_call>{"name": "ping", "arguments": {}}</tool_call>' in answer["prompt_text"]
    assert "<tool_response>\npong!\n</tool_response>" in answer["prompt_text"] and '"name": "ping"' in answer["prompt_text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [tool("a b", {})]}, "tools"),
        ({"tools": [PING, PING]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "paramters": {}}}]}, "tools"),
        ({"tools": [tool("a", {}, strict="yes")]}, "tools"),
        ({"tools": [tool(f"t{i}", {}) for i in range(129)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [PING], "tool_choice": {"type": "function", "function": {"name": "pong"}}}, "tool_choice"),
        ({"tools": [PING], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [PING], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [tool("a", {"type": "strng"})], "tool_choice": "required"}, "tools"),
    ],
)
def test_tools_that_cannot_be(echo: Api, fields: dict[str, Any], param: str) -> None:
    answer = echo.post(CHAT, {"messages": [{"role": "user", "content": "a"}], **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    echo.alive()


def test_b118_cut_off_while_thinking(thinking: Api) -> None:
    answer = both(thinking, "<think>one two three four five six", max_tokens=6)
    assert answer["content"] == "" and answer["reasoning"].startswith("one two") and answer["finish_reason"] == "length"


def test_b120_reasoning_then_a_call(thinking: Api) -> None:
    answer = both(thinking, '<think>t</think><tool_call>{"name": "ping", "arguments": {}}</tool_call>', tools=[PING])
    assert answer == {"content": "", "reasoning": "t", "calls": [["ping", "{}"]], "finish_reason": "tool_calls"}
    hidden = both(thinking, "<think>secret</think>said", include_reasoning=False)
    assert hidden == {"content": "said", "reasoning": "", "calls": [], "finish_reason": "stop"}


def test_forced_forms_hold_behind_the_reasoning(thinking: Api) -> None:
    """The echoed answer thinks freely, then breaks its form; held to it, it cannot."""
    schema = {"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"], "additionalProperties": False}
    thought = '<think>{"n": "three"}? No.</think>'
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for said in ('{"n": "two"}', '{"n": "three"}', "three"):
        answer = both(thinking, thought + said, response_format=wanted)
        jsonschema.validate(json.loads(answer["content"]), schema)
        assert answer["reasoning"] == '{"n": "three"}? No.' and (said != '{"n": "two"}' or answer["content"] == said)
    named = both(thinking, thought + '{"n": "two"}', tools=[tool("set", schema)], tool_choice={"type": "function", "function": {"name": "set"}})
    assert named == {"content": "", "reasoning": '{"n": "three"}? No.', "calls": [["set", '{"n": "two"}']], "finish_reason": "stop"}
    required = both(thinking, thought + '[{"name": "set", "parameters": {"n": "two"}}]', tools=[tool("set", schema)], tool_choice="required")
    assert required["reasoning"] == '{"n": "three"}? No.' and required["calls"] == [["set", '{"n": "two"}']]
    strict = both(thinking, thought + '\n<tool_call>\n{"name": "set", "arguments": {"n": "three"}}\n</tool_call>', tools=[tool("set", schema, strict=True)])
    assert strict["reasoning"] == '{"n": "three"}? No.' and '"three"' not in strict["calls"][0][1]
    hidden = both(thinking, thought + '{"n": "one"}', response_format=wanted, include_reasoning=False)
    assert hidden["reasoning"] == "" and hidden["content"] == '{"n": "one"}'
    without = both(thinking, '{"n": "one"}', response_format=wanted)
    assert without["reasoning"] == "" and without["content"] == '{"n": "one"}'
    continued = [{"role": "user", "content": '{"n": "two"}'}, {"role": "assistant", "content": "<think>"}]
    body = {"messages": continued, "continue_final_message": True, "response_format": wanted, "max_tokens": 40, "temperature": 0}
    choice = thinking.post(CHAT, body).json()["choices"][0]  # begins inside; the model never ends it, and no EOS may
    assert choice["finish_reason"] == "length" and not choice["message"]["content"] and choice["message"]["reasoning"]


def test_b002_held_text_goes_through_the_parsers(thinking: Api) -> None:
    answer = both(thinking, '<think>hm</think><tool_call>{"name": "ping", "arguments": {}}</tool_c', tools=[PING], stop=["</tool_call>!"])
    assert answer["calls"] == [["ping", "{}"]] and answer["reasoning"] == "hm"
