"""gRPC with a real client: what is asked and answered, what is refused and how, and what ends a call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_client import Client, Fake, Refused, client_of, fake, message
from prometheus_client.parser import text_string_to_metric_families

from llmx_server.keys import SCOPES, Limits, new_key

Code = grpc.StatusCode


@pytest.fixture(scope="module")
def server() -> Iterator[Fake]:
    with fake(max_model_len=256) as running:
        yield running


@pytest.fixture
def client(server: Fake) -> Iterator[Client]:
    with client_of(server.address) as client:
        yield client


def refusal(ask: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        ask()
    return caught.value


def messages(*texts: str) -> Any:
    return message("Messages", messages=[message("Message", role="user", content=text) for text in texts])


def test_a_text_is_answered_in_parts_with_the_usage_last(client: Client) -> None:
    parts = client.answers(text="a prompt", max_tokens=5)
    assert [choice.text for one in parts for choice in one.choices] == list("hello")
    assert [part.HasField("usage") for part in parts] == [False] * 5 + [True]
    usage = parts[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.cached_tokens) == (8, 5, 13, 4)
    assert parts[4].choices[0].finish_reason == "length" and not parts[3].choices[0].HasField("finish_reason")
    assert len({part.id for part in parts}) == 1 and {part.model for part in parts} == {"fake-model"}


def test_what_http_answers(client: Client, server: Fake) -> None:
    fields = {"max_tokens": 9, "n": 3, "stop": [" w"], "return_token_ids": True, "seed": 2**40, "echo": True}
    found: dict[int, str] = {}
    ids: dict[int, list[int]] = {}
    parts = client.answers(text="abc", **fields)
    for choice in itertools.chain.from_iterable(part.choices for part in parts):
        found[choice.index] = found.get(choice.index, "") + choice.text
        ids.setdefault(choice.index, []).extend(choice.token_ids)
    body = httpx.post(f"{server.url}/v1/completions", json={"prompt": "abc", **fields}).json()
    assert list(found.values()) == [choice["text"] for choice in body["choices"]] == ["abchello"] * 3
    assert list(ids.values()) == [choice["token_ids"] for choice in body["choices"]]
    assert [token for part in parts for token in part.prompt_token_ids] == list(b"abc")
    assert [choice.stop_text for part in parts for choice in part.choices if choice.HasField("finish_reason")] == [" w"] * 3


def test_token_ids(client: Client) -> None:
    parts = client.answers(token_ids=message("TokenIds", ids=list(b"abc")), model="alias/with.dots")
    assert parts[-1].usage.prompt_tokens == 3 and parts[0].model == "alias/with.dots" and parts[-2].choices[0].finish_reason == "stop"


def test_a_chat_with_logprobs(client: Client, server: Fake) -> None:
    parts = client.answers(messages=messages("hi"), max_tokens=3, logprobs=2, chat_template_kwargs='{"mood": "glad"}')
    found = [entry for part in parts for choice in part.choices for entry in choice.logprobs]
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "chat_template_kwargs": {"mood": "glad"}}
    wanted = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert [(one.token, one.logprob) for one in found] == [(one["token"], one["logprob"]) for one in wanted["choices"][0]["logprobs"]["content"]]
    assert [(one.token, one.logprob) for one in found[0].top_logprobs] == [("h", -0.5), ("i", -2.0)]
    assert parts[-1].usage.prompt_tokens == wanted["usage"]["prompt_tokens"] and parts[0].id.startswith("chatcmpl-")
    assert "".join(choice.text for part in parts for choice in part.choices) == "hel"


def test_logprobs_of_an_echoed_prompt(client: Client) -> None:
    entries = [entry for part in client.answers(text="ab", max_tokens=1, echo=True, logprobs=1) for choice in part.choices for entry in choice.logprobs]
    assert [entry.token for entry in entries] == ["a", "b", "h"]
    assert [entry.HasField("logprob") for entry in entries] == [False, True, True]


@pytest.mark.parametrize(
    ("fields", "code", "words", "field"),
    [
        ({}, Code.INVALID_ARGUMENT, "no prompt", "prompt"),
        ({"text": ""}, Code.INVALID_ARGUMENT, "the prompt is empty", "prompt"),
        ({"text": "a", "max_tokens": 0}, Code.INVALID_ARGUMENT, "max_tokens is 0: it must be at least 1", "max_tokens"),
        ({"text": "a", "temperature": -1.0}, Code.INVALID_ARGUMENT, "temperature is -1", "temperature"),
        ({"text": "a" * 300}, Code.INVALID_ARGUMENT, "the prompt has 300 tokens", "prompt"),
        ({"text": "a", "model": "gone"}, Code.NOT_FOUND, "model 'gone' is not served here: available are fake-model", "model"),
        ({"text": "a", "priority": 3}, Code.INVALID_ARGUMENT, "priority is 3: this server runs requests in order", "priority"),
        ({"text": "a", "response_format": "{"}, Code.INVALID_ARGUMENT, "response_format is not valid JSON", "response_format"),
        ({"text": "a", "structured_outputs": "[1]"}, Code.INVALID_ARGUMENT, "structured_outputs", "structured_outputs"),
        ({"text": "a", "request_id": "ä b"}, Code.INVALID_ARGUMENT, "request_id is 'ä b'", "request_id"),
        ({"messages": message("Messages")}, Code.INVALID_ARGUMENT, "messages is empty", "messages"),
        ({"messages": messages("a"), "tool_choice": "required"}, Code.INVALID_ARGUMENT, "tool_choice", "tool_choice"),
    ],
)  # fmt: skip
def test_refused_as_over_http(client: Client, fields: dict[str, Any], code: Code, words: str, field: str) -> None:
    refused = refusal(lambda: client.answers(**fields))
    assert (refused.code, refused.about["error-param"]) == (code, field) and words in refused.details
    assert refused.about["x-request-id"]


def test_a_model_that_gives_text_has_no_vectors(client: Client) -> None:
    assert refusal(lambda: client.one("Embed", texts=["a"])).code is Code.INVALID_ARGUMENT
    assert "both set" in refusal(lambda: client.one("Embed", texts=["a"], token_ids=[message("TokenIds", ids=[1])])).details


def test_models(client: Client, server: Fake) -> None:
    wanted = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [(one.id, one.root, one.max_model_len) for one in client.one("ListModels").models] == [(m["id"], m["root"], m["max_model_len"]) for m in wanted]


def test_request_ids_warnings_and_metrics(client: Client, server: Fake) -> None:
    call = client.generate(text="a", max_tokens=2, add_generation_prompt=True, metadata=[("x-request-id", "mine-7")])
    about = dict(call.initial_metadata())
    assert about["x-request-id"] == "mine-7" and "add_generation_prompt" in about["warning"] and len(list(call)) == 3
    refusal(lambda: client.answers(text="a", model="gone"))
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    counted = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}
    name = ("model_name", "fake-model")
    assert counted["llmx:request_success_total", (("finished_reason", "length"), name)] > 0
    assert counted["llmx:request_rejections_total", (name, ("reason", "model_not_found"))] > 0


def test_a_message_above_the_limit_is_not_read() -> None:
    with fake(server={"grpc_max_message_bytes": 2000}) as server, client_of(server.address) as client:
        assert client.text(text="a" * 200, max_tokens=2) == "he"
        assert refusal(lambda: client.answers(text="a" * 2000)).code is Code.RESOURCE_EXHAUSTED


def test_an_engine_that_fails_after_the_first_tokens() -> None:
    with fake(fail_at=3) as server, client_of(server.address) as client:
        call, texts = client.generate(text="a"), list[str]()
        with pytest.raises(grpc.RpcError) as caught:
            texts.extend(choice.text for part in call for choice in part.choices)
        assert (caught.value.code(), caught.value.details()) == (Code.UNAVAILABLE, "the engine process ended with signal 9")
        assert texts == list("hel") and dict(call.trailing_metadata())["error-code"] == "engine_dead"


def keys_file(folder: Path) -> dict[str, str]:
    made = {scope: new_key(f"only-{scope}", (scope,)) for scope in SCOPES} | {"slow": new_key("slow", ("generate",), Limits(1, 0))}
    (folder / "keys").write_text("\n".join(line for _, line in made.values()) + "\n")
    return {name: key for name, (key, _) in made.items()}


def test_keys_scopes_and_limits(tmp_path: Path) -> None:
    keys = keys_file(tmp_path)
    calls = {
        "generate": lambda client: client.answers(text="a", max_tokens=1),
        "chat": lambda client: client.answers(messages=messages("a"), max_tokens=1),
        "embed": lambda client: client.one("Embed", texts=["a"]),
        "models": lambda client: client.one("ListModels"),
    }
    enough = {"generate": {"generate"}, "chat": {"generate"}, "embed": {"embed"}, "models": set(SCOPES)}
    with fake(server={"api_key_file": str(tmp_path / "keys")}) as server:
        for shown in ([], [("authorization", "Bearer llmx-wrong")], [("x-api-key", "llmx-wrong")], [("authorization", keys["generate"])]):
            with client_of(server.address, shown) as client:
                for ask in (*calls.values(), lambda client: client.answers()):  # a body is not looked at before the key
                    refused = refusal(lambda ask=ask, client=client: ask(client))
                    assert refused.code is Code.UNAUTHENTICATED and refused.details.startswith("no valid API key")
        for scope, (name, ask) in itertools.product(SCOPES, calls.items()):
            with client_of(server.address, [("authorization", f"Bearer {keys[scope]}")]) as client:
                if scope in enough[name] and name != "embed":
                    ask(client)
                    continue
                refused = refusal(lambda ask=ask, client=client: ask(client))  # this model has no vectors: the key passes, the request does not
                assert refused.code is (Code.INVALID_ARGUMENT if scope in enough[name] else Code.PERMISSION_DENIED), (scope, name)
        with client_of(server.address, [("x-api-key", keys["slow"])]) as client:
            call = client.generate(text="a", max_tokens=1)
            assert dict(call.initial_metadata())["x-ratelimit-remaining-requests"] == "0" and list(call)
            refused = refusal(lambda: client.answers(text="a", max_tokens=1))
            assert refused.code is Code.RESOURCE_EXHAUSTED and int(refused.about["retry-after"]) > 30 and "'slow' may use 1 requests" in refused.details


def test_json_fields_reach_the_parameters_as_they_are(client: Client, server: Fake) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}}}}
    fields = {"messages": messages("a"), "tools": json.dumps([tool]), "max_tokens": 4}
    assert client.text(**fields, tool_choice="none") == "hell"
    refused = refusal(lambda: client.answers(**fields, tool_choice='{"type": "function", "function": {"name": "gone"}}'))
    assert refused.code is Code.INVALID_ARGUMENT and "gone" in refused.details
