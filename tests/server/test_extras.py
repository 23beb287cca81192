"""Fields beyond OpenAI's own: ids, pacing, usage in every chunk, best_of, cut prompts, echo in chat, ids of answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fake_engine import EOS, FakeEngine

pytestmark = pytest.mark.anyio

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {CHAT: {"messages": [{"role": "user", "content": "hi"}]}, COMPLETIONS: {"prompt": "hi", "max_tokens": 50}}
PROMPTS = {CHAT: "user: hi\nassistant: ", COMPLETIONS: "hi"}
HELLO = [*b"hello world", EOS]


async def whole(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json={**BODIES[path], **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def chunks(client: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await client.post(path, json={**BODIES[path], **body, "stream": True})
    assert response.status_code == 200, response.text
    *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else (choice.get("delta") or choice.get("message") or {}).get("content", ""))


@pytest.mark.parametrize("path", BODIES)
async def test_token_ids_of_prompt_and_answer(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    answer = await whole(client, path, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == HELLO
    assert (answer if path == CHAT else choice)["prompt_token_ids"] == list(PROMPTS[path].encode())
    for size in (1, 3):
        engine.chunk = size
        parts = await chunks(client, path, return_token_ids=True)
        assert [token for part in parts for token in part["choices"][0].get("token_ids", [])] == HELLO
        told = [part.get("prompt_token_ids") or part["choices"][0].get("prompt_token_ids") for part in parts]
        assert told[0] == list(PROMPTS[path].encode()) and not any(told[1:])
    assert "token_ids" not in (await whole(client, path))["choices"][0]


@pytest.mark.parametrize("path", BODIES)
async def test_ids_of_a_stream_belong_to_their_text(client: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    engine.answer = lambda ids: "猫 on!"
    for part in await chunks(client, path, return_token_ids=True, stop=["on?"]):
        choice = part["choices"][0]
        ids = [token for token in choice.get("token_ids", []) if token < 256]
        assert bytes(ids).decode() == text_of(choice)


@pytest.mark.parametrize("path", BODIES)
async def test_usage_in_every_chunk(client: httpx.AsyncClient, path: str) -> None:
    parts = await chunks(client, path, n=2, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [part["usage"]["completion_tokens"] for part in parts if part["usage"]]
    assert counts == sorted(counts) and counts[0] == 2 and parts[-1]["choices"] == []
    assert parts[-2]["usage"] == parts[-1]["usage"] == (await whole(client, path, n=2))["usage"]
    refused = await client.post(path, json={**BODIES[path], "stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert refused.status_code == 400 and "include_usage" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_pacing_makes_fewer_chunks_of_the_same_text(client: httpx.AsyncClient, path: str) -> None:
    def texts(parts: list[dict[str, Any]]) -> list[str]:
        return [text for part in parts if (text := text_of(part["choices"][0]))]

    assert texts(await chunks(client, path)) == list("hello world")
    assert texts(await chunks(client, path, stream_interval=4)) == ["h", "ello", " wor", "ld"]
    ids = [token for part in await chunks(client, path, stream_interval=4, return_token_ids=True) for token in part["choices"][0].get("token_ids", [])]
    assert ids == HELLO


@pytest.mark.parametrize("path", BODIES)
async def test_tokens_named_by_id(client: httpx.AsyncClient, path: str) -> None:
    wanted = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    names = [f"token_id:{token}" for token in HELLO]

    def named(choice: dict[str, Any]) -> list[str]:
        logprobs = choice["logprobs"] or {"content": [], "tokens": []}
        return [entry["token"] for entry in logprobs["content"]] if path == CHAT else list(logprobs["tokens"])

    choice = (await whole(client, path, return_tokens_as_token_ids=True, **wanted))["choices"][0]
    assert named(choice) == names
    tops = [top["token"] for top in choice["logprobs"]["content"][0]["top_logprobs"]] if path == CHAT else list(choice["logprobs"]["top_logprobs"][0])
    assert tops == ["token_id:104", "token_id:105"]
    parts = await chunks(client, path, return_tokens_as_token_ids=True, **wanted)
    assert [name for part in parts for name in named(part["choices"][0])] == names


@pytest.mark.parametrize("path", BODIES)
async def test_the_answers_id_and_tier(client: httpx.AsyncClient, path: str) -> None:
    prefix = "chatcmpl-" if path == CHAT else "cmpl-"
    answer = await whole(client, path, request_id="mine-7", service_tier="auto")
    assert answer["id"] == prefix + "mine-7" and answer["service_tier"] == "default"
    parts = await chunks(client, path, request_id="mine-7", service_tier="default")
    assert {part["id"] for part in parts} == {prefix + "mine-7"} and {part["service_tier"] for part in parts} == {"default"}
    two = [(await whole(client, path))["id"] for _ in range(2)]
    assert len({*two}) == 2 and "service_tier" not in await whole(client, path)


async def test_two_clients_with_one_request_id_do_not_meet(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    for _ in range(2):
        await whole(client, COMPLETIONS, request_id="same")
    assert len(set(engine.started_ids)) == 2


async def test_cut_prompts(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = lambda ids: "<" + bytes(ids).decode() + ">"

    async def seen(**body: Any) -> str:
        return text_of((await whole(client, COMPLETIONS, **body))["choices"][0])

    assert await seen(prompt="abcdef", truncate_prompt_tokens=4) == "<cdef>"
    assert await seen(prompt="abcdef", truncate_prompt_tokens=4, truncation_side="right") == "<abcd>"
    assert await seen(prompt=[97, 98, 99], truncate_prompt_tokens=2) == "<bc>"
    assert await seen(prompt="abc", truncate_prompt_tokens=10) == "<abc>"
    echoed = await whole(client, COMPLETIONS, prompt="abcdef", truncate_prompt_tokens=4, echo=True, logprobs=0)
    assert text_of(echoed["choices"][0]) == "cdef<cdef>" and echoed["usage"]["prompt_tokens"] == 4
    long = await whole(client, COMPLETIONS, prompt="x" * 1000, truncate_prompt_tokens=-1, max_tokens=6)
    assert long["usage"]["prompt_tokens"] == engine.info.max_model_len - 6
    chat = await whole(client, CHAT, truncate_prompt_tokens=5)
    assert chat["usage"]["prompt_tokens"] == 5


async def test_best_of(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    """The scripted engine's answers all have the logprob -0.5 per token; one is made better."""
    engine.better = 2
    plain = await whole(client, COMPLETIONS, n=4)
    best = await whole(client, COMPLETIONS, n=2, best_of=4)
    assert [text_of(choice) for choice in best["choices"]] == ["hello world #2", "hello world"]
    assert [choice["index"] for choice in best["choices"]] == [0, 1] and best["choices"][0]["logprobs"] is None
    assert best["usage"] == plain["usage"] and engine.params[-1].n == 4
    batch = await whole(client, COMPLETIONS, prompt=["a", "b"], best_of=3, logprobs=1)
    assert [choice["index"] for choice in batch["choices"]] == [0, 1]
    assert all(text_of(choice) == "hello world #2" and choice["logprobs"]["tokens"][0] == "h" for choice in batch["choices"])
    for bad in ({"n": 3, "best_of": 2}, {"best_of": 129}, {"best_of": 2, "stream": True}):
        response = await client.post(COMPLETIONS, json={**BODIES[COMPLETIONS], **bad})
        assert response.status_code == 400 and response.json()["error"]["param"] == "best_of"
    assert (await whole(client, COMPLETIONS, n=2, best_of=2))["usage"]["completion_tokens"] == 12 + 15


async def test_echo_in_chat(client: httpx.AsyncClient) -> None:
    told = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once "}]
    body = {"messages": told, "echo": True, "continue_final_message": True}
    assert text_of((await whole(client, CHAT, **body))["choices"][0]) == "Once hello world"
    parts = await chunks(client, CHAT, **body)
    assert [text_of(part["choices"][0]) for part in parts[:3]] == ["", "Once ", "h"]
    assert "".join(text_of(part["choices"][0]) for part in parts) == "Once hello world"
    assert text_of((await whole(client, CHAT, echo=True))["choices"][0]) == "hello world"  # the last message is the user's


async def test_the_prompts_text(client: httpx.AsyncClient) -> None:
    assert (await whole(client, CHAT, return_prompt_text=True))["prompt_text"] == PROMPTS[CHAT]
    parts = await chunks(client, CHAT, return_prompt_text=True)
    assert parts[0]["prompt_text"] == PROMPTS[CHAT] and not any("prompt_text" in part for part in parts[1:])


async def test_documents_and_effort_reach_the_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    seen: list[dict[str, Any]] = []
    engine.chat_template.render = lambda **arguments: seen.append(arguments) or "p"  # type: ignore[method-assign,assignment,func-returns-value]
    await whole(client, CHAT, documents=[{"title": "t", "text": "x"}])
    assert seen[0]["documents"] == [{"title": "t", "text": "x"}]
    for effort, thinks in (("none", False), ("high", True)):
        await whole(client, CHAT, reasoning_effort=effort)
        assert (seen[-1]["reasoning_effort"], seen[-1]["enable_thinking"]) == (effort, thinks)
    await whole(client, CHAT, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True})
    assert seen[-1]["enable_thinking"] is True
    engine.chat_template.variables = lambda: frozenset({"messages"})  # type: ignore[method-assign]
    response = await client.post(CHAT, json={**BODIES[CHAT], "documents": [{"text": "x"}]})
    assert response.status_code == 400 and response.json()["error"]["param"] == "documents"


async def test_prompt_logprobs_show_as_many_as_asked(client: httpx.AsyncClient) -> None:
    """Echo needs more of them than prompt_logprobs asks for; each place shows the token itself first."""
    choice = (await whole(client, COMPLETIONS, prompt="abc", echo=True, logprobs=4, prompt_logprobs=1))["choices"][0]
    assert [list(place) for place in choice["prompt_logprobs"][1:]] == [["98"], ["99"]]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 4
    chat = await whole(client, CHAT, prompt_logprobs=2)
    assert chat["prompt_logprobs"][0] is None and list(chat["prompt_logprobs"][1]) == [str(ord("s")), str(ord("t"))]


async def test_a_misspelt_field_is_told_what_it_may_have_meant(client: httpx.AsyncClient) -> None:
    response = await client.post(COMPLETIONS, json={**BODIES[COMPLETIONS], "temprature": 0, "max_token": 3, "zzz": 1})
    assert response.headers["warning"] == '299 llmx "ignored: temprature (unknown, temperature?), max_token (unknown, max_tokens?), zzz (unknown)"'
    refused = (await client.post(COMPLETIONS, json={**BODIES[COMPLETIONS], "prompt_embeds": "AAAA"})).json()["error"]["message"]
    assert refused == "prompt_embeds is 'AAAA', which is not supported here: send prompt"
