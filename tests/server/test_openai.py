"""The openai package against `llmx serve`: what its users do, and the exceptions that they catch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from processes import Server, serve
from test_live import ARGUMENTS, MODEL, PLATFORM

KEY, OTHER_KEY = "first-key", "second-key"
ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with serve(*ARGUMENTS, "--api-key", KEY, "--api-key", OTHER_KEY) as running:
        yield running


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}


def connect(server: Server, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(live: Server) -> Iterator[openai.OpenAI]:
    with connect(live) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == MODEL == client.models.retrieve(MODEL).id and model.object == "model"


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_completion_tokens": 16}
    answer = client.chat.completions.create(**options)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length") and answer.object == "chat.completion"
    assert answer.usage and answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details and answer.usage.prompt_tokens_details.cached_tokens == 0
    with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == choice.message.content
    assert chunks[0].choices[0].delta.role == "assistant" and {chunk.id for chunk in chunks} == {chunks[0].id}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == choice.finish_reason
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details and chunks[-1].usage.prompt_tokens_details.cached_tokens > 0  # the same prompt again
    if PLATFORM == "cpu":
        assert "Paris" in (choice.message.content or "")


def test_the_stream_helper_puts_the_answer_together(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 8, "n": 2, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**options)
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    for got, wanted in zip(final.choices, whole.choices, strict=True):
        assert got.message.content == wanted.message.content and got.finish_reason == wanted.finish_reason
        assert got.logprobs and wanted.logprobs and got.logprobs.content == wanted.logprobs.content


def test_roles_names_and_parts(client: openai.OpenAI) -> None:
    def prompt_tokens(*messages: Any) -> int:
        usage = client.chat.completions.create(model=MODEL, messages=list(messages), max_tokens=1).usage
        assert usage
        return usage.prompt_tokens

    told = {"role": "system", "content": "Be brief."}
    plain = prompt_tokens(told, {"role": "user", "content": "one\ntwo"})
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt_tokens({**told, "role": "developer"}, {"role": "user", "name": "ann", "content": parts}) == plain
    history = ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "user", "content": "why"})
    assert prompt_tokens(told, {"role": "user", "content": "hi"}, *history) > plain


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=6, logprobs=True, top_logprobs=5)
    content = (answer.choices[0].logprobs and answer.choices[0].logprobs.content) or []
    assert answer.usage and len(content) == answer.usage.completion_tokens
    for entry in content:
        assert entry.top_logprobs[0].token == entry.token and entry.top_logprobs[0].logprob == entry.logprob  # greedy
        assert len(entry.top_logprobs) == 5 and sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.00001
        assert bytes(entry.bytes or []).decode() == entry.token
    legacy = client.completions.create(model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=2, logprobs=3, echo=True)
    found = legacy.choices[0].logprobs
    assert found and found.tokens and found.token_logprobs and found.text_offset and found.top_logprobs
    assert "".join(found.tokens) == legacy.choices[0].text and found.token_logprobs[0] is None and found.text_offset[:2] == [0, len(found.tokens[0])]
    assert all(logprob < 0 for logprob in found.token_logprobs[1:]) and len(found.top_logprobs[-1]) == 3


def test_three_choices_and_seeds(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "temperature": 1.5, "max_tokens": 12}
    texts = [choice.text for choice in client.completions.create(**options, n=3, seed=11).choices]
    assert len(set(texts)) == 3
    assert [choice.text for choice in client.completions.create(**options, n=3, seed=11).choices] == texts
    assert client.completions.create(**options, seed=12).choices[0].text == texts[1]  # choice i has seed + i
    assert len({client.completions.create(**options).choices[0].text for _ in range(3)}) > 1
    streamed = [""] * 3
    with client.completions.create(**options, n=3, seed=11, stream=True) as stream:
        for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


def test_prompts_in_every_form(client: openai.OpenAI) -> None:
    both = client.completions.create(model=MODEL, prompt=["Once upon", "The sky"], max_tokens=4, temperature=0)
    assert [choice.index for choice in both.choices] == [0, 1]
    for prompt, choice in zip(("Once upon", "The sky"), both.choices, strict=True):
        told: Any = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0, extra_body={"return_token_ids": True}).choices[0]
        assert told.text == choice.text
        ids = client.completions.create(model=MODEL, prompt=told.prompt_token_ids, max_tokens=4, temperature=0)
        assert ids.choices[0].text == choice.text
    several = client.completions.create(model=MODEL, prompt=[[1, 2, 3], [4, 5]], max_tokens=1)
    assert several.usage and several.usage.prompt_tokens == 5


def test_stop(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 12}
    plain = client.completions.create(**options)
    text = plain.choices[0].text
    cut: Any = client.completions.create(**options, stop=["never", text[4:7]]).choices[0]
    assert cut.text == text[: text.index(text[4:7])] and (cut.finish_reason, cut.stop_reason) == ("stop", text[4:7])
    assert plain.choices[0].finish_reason == "length" and plain.usage and plain.usage.completion_tokens == 12


def test_fields_beyond_openais(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 12}
    plain = client.chat.completions.create(**options).choices[0].message.content or ""
    word = plain.split()[-1].strip(".")
    without = client.chat.completions.create(**options, extra_body={"bad_words": [word], "top_k": 5, "min_tokens": 2}).choices[0].message.content or ""
    assert word not in without
    raw = client.chat.completions.with_raw_response.create(**options, user="ann", extra_body={"no_such_field": 1}, extra_headers={"X-Request-Id": "mine"})
    assert raw.headers["x-request-id"] == "mine" and raw.parse().choices[0].message.content == plain
    assert "no_such_field (unknown)" in raw.headers["warning"] and "user (" in raw.headers["warning"]


@pytest.mark.parametrize(
    ("options", "kind", "param", "code"),
    [
        ({"temperature": 3}, openai.BadRequestError, "temperature", None),
        ({"logit_bias": {"49152": 1}}, openai.BadRequestError, "logit_bias", None),
        ({"n": 0}, openai.BadRequestError, "n", None),
        ({"max_tokens": 5000}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "stop", None),
        ({"model": "nope"}, openai.NotFoundError, "model", "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "messages", None),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, openai.BadRequestError, "messages", None),
        ({"store": True}, openai.BadRequestError, "store", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_typed(client: openai.OpenAI, options: dict[str, Any], kind: Any, param: str, code: str | None, stream: bool) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": ASK, "stream": stream, **options})
    assert (caught.value.param, caught.value.code, caught.value.type) == (param, code, "invalid_request_error")
    assert param in str(caught.value) and caught.value.request_id


def test_keys(live: Server, client: openai.OpenAI) -> None:
    with connect(live, "wrong") as wrong, pytest.raises(openai.AuthenticationError) as caught:
        wrong.models.list()
    assert caught.value.code == "invalid_api_key"
    with connect(live, OTHER_KEY) as other:
        assert other.models.list().data
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
    with pytest.raises(openai.BadRequestError, match="gives text, no vectors"):
        client.embeddings.create(model=MODEL, input="x")


def test_many_at_once(live: Server) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Tell me about {number}."}], temperature=0, max_tokens=6, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key=KEY, max_retries=0, timeout=120) as client:
            alone = [await ask(client, number) for number in range(3)]
            together = await asyncio.gather(*(ask(client, number % 3) for number in range(12)))
            return [text for number, text in enumerate(together) if text != alone[number % 3]]

    assert asyncio.run(all_of_them()) == []
