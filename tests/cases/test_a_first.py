"""Public bugs of other engines, part A: stop strings, characters, checks, echo, usage, finish reasons."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.cases.conftest import VOCAB, Api, texts

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def both(api: Api, text: str, **fields: Any) -> list[tuple[str, str]]:
    """(text, finish reason) of chat and completions, streamed and not; the streamed chunks are checked against the whole."""
    found = []
    for path, body in ((CHAT, {"messages": [{"role": "user", "content": text}]}), (COMPLETIONS, {"prompt": text})):
        body = {**body, "temperature": 0, "max_tokens": 100, **fields}
        whole = api.post(path, body).json()["choices"][0]
        chunks = api.stream(path, body)
        streamed = texts(chunks)
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"] is not None]
        content = whole["message"]["content"] if "message" in whole else whole["text"]
        assert streamed == content and reasons == [whole["finish_reason"]]
        assert all("finish_reason" in choice for chunk in chunks for choice in chunk["choices"])
        found.append((content, whole["finish_reason"]))
    return found


def test_b001_stop_string_across_tokens(echo: Api) -> None:
    assert both(echo, "red lemon sky", stop=["on sk"]) == [("red lem", "stop")] * 2


def test_b002_held_back_text_is_flushed_once(echo: Api) -> None:
    assert both(echo, "cold lem", stop=["lemon!"]) == [("cold lem", "stop")] * 2


def test_b003_characters_of_several_tokens_are_never_split(echo: Api) -> None:
    text = "ok 👩‍🚀 猫 é!"
    assert both(echo, text) == [(text, "stop")] * 2
    for chunk in echo.stream(COMPLETIONS, {"prompt": text, "temperature": 0, "max_tokens": 100}):
        assert "\ufffd" not in chunk["choices"][0]["text"]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_b004_a_cut_character_is_one_replacement_at_most(echo: Api, cut: int) -> None:
    for text, reason in both(echo, "👩‍🚀", max_tokens=cut):
        assert reason == "length" and text.count("\ufffd") <= 1 and "\ufffd" not in text[:-1]
    assert echo.complete("👩‍🚀", max_tokens=cut)["usage"]["completion_tokens"] == cut


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"NaN"'])
def test_b006_numbers_that_are_none(echo: Api, field: str, value: str) -> None:
    for path, start in ((COMPLETIONS, '{"prompt": "a"'), (CHAT, '{"messages": [{"role": "user", "content": "a"}]')):
        answer = echo.post(path, f'{start}, "{field}": {value}}}'.encode())
        assert answer.status_code == 400 and answer.json()["error"]["message"]
    echo.alive()


@pytest.mark.parametrize("bias", [{str(VOCAB): 5}, {"-1": 5}, {"1e3": 5}, {"abc": 5}, {"5": 101}])
def test_b007_b008_logit_bias(echo: Api, bias: dict[str, float]) -> None:
    answer = echo.post(COMPLETIONS, {"prompt": "a", "logit_bias": bias})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "logit_bias"
    echo.alive()


def test_b008_a_special_token_may_be_biased(echo: Api) -> None:
    answer = echo.complete("hi", max_tokens=8, logit_bias={"2": -100}, logprobs=0)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("prompt", [[VOCAB], [-1], [9223372036854775808], [[1, 2], [VOCAB]], [1.5], [True], "", [""], [], [[]], [["a"]], {"a": 1}, 5])
def test_b009_b011_prompts_that_cannot_be(echo: Api, prompt: Any) -> None:
    answer = echo.post(COMPLETIONS, {"prompt": prompt})
    assert answer.status_code == 400 and "prompt" in answer.json()["error"]["message"]
    assert echo.post(CHAT, {"messages": []}).status_code == 400
    echo.alive()


def test_b012_b013_scoring_a_prompt(real: Api) -> None:
    scored = real.complete("a b c", echo=True, max_tokens=0, logprobs=1)
    choice, count = scored["choices"][0], scored["usage"]["prompt_tokens"]
    assert choice["text"] == "a b c" and choice["finish_reason"] == "length" and scored["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert [len(logprobs[name]) for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs")] == [count] * 4
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert real.complete("a b c", echo=True, max_tokens=0)["choices"][0]["logprobs"] is None
    longer = real.complete("a b c", echo=True, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]
    assert len(longer["tokens"]) == count + 1 and longer["token_logprobs"][:count] == logprobs["token_logprobs"]
    assert longer["text_offset"] == sorted(longer["text_offset"])
    alone = real.complete("a b c", max_tokens=1, logprobs=1)["choices"][0]["logprobs"]
    assert alone["token_logprobs"][0] == longer["token_logprobs"][-1]


def test_b015_b016_usage_in_streams(echo: Api) -> None:
    for options in (None, {}, {"include_usage": False}):
        body: dict[str, Any] = {"prompt": "hello there", "stream_options": options}
        assert all(chunk.get("usage") is None for chunk in echo.stream(COMPLETIONS, body))
    for n in (1, 2):
        body = {"prompt": "hello there", "max_tokens": 2, "n": n, "temperature": 0.0}
        chunks = echo.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        assert [bool(chunk["choices"]) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
        assert all(chunk.get("usage") is None for chunk in chunks[:-1])
        assert chunks[-1]["usage"] == echo.post(COMPLETIONS, body).json()["usage"]
        assert chunks[-1]["usage"]["completion_tokens"] == 2 * n and chunks[-1]["usage"]["prompt_tokens"] == 2
    assert echo.post(COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}).status_code == 400


def test_b017_b018_finish_reasons(echo: Api) -> None:
    assert {reason for _, reason in both(echo, "one two three", max_tokens=2)} == {"length"}
    assert {reason for _, reason in both(echo, "x")} == {"stop"}
    assert {reason for _, reason in both(echo, "one two three", stop="two")} == {"stop"}


def test_b025_b026_history_and_content_parts(echo: Api) -> None:
    for content in (None, "", []):
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}, {"role": "user", "content": "last"}]
        answer = echo.post(CHAT, {"messages": history, "temperature": 0})
        assert answer.status_code in (200, 400), answer.text
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    answer = echo.post(CHAT, {"messages": [{"role": "user", "content": parts}], "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"].split() == ["one", "two"]
    echo.alive()


@pytest.mark.parametrize("host", ["127.0.0.1:{}", "localhost:{}", "[::ffff:127.0.0.1]:{}", "2130706433:{}", "169.254.169.254"])
@pytest.mark.parametrize("kind", ["image_url", "input_image", "image", "file"])
def test_b124_an_address_in_a_request_is_never_opened(echo: Api, kind: str, host: str) -> None:
    """Media are refused by type; a listener sees that nobody came."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://{host.format(listener.getsockname()[1])}/a.png"
        part = {
            "image_url": {"type": "image_url", "image_url": {"url": url}},
            "input_image": {"type": "input_image", "image_url": url},
            "image": {"type": "image", "source": {"type": "url", "url": url}},
            "file": {"type": "image_url", "image_url": {"url": "file:///etc/hosts"}},
        }[kind]
        bodies = {
            CHAT: {"messages": [{"role": "user", "content": [part]}]},
            "/v1/responses": {"input": [{"role": "user", "content": [part]}]},
            "/v1/messages": {"max_tokens": 4, "messages": [{"role": "user", "content": [part]}]},
        }
        for path, body in bodies.items():
            answer = echo.post(path, body)
            assert answer.status_code == 400 and answer.json()["error"]["message"]
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()
    echo.alive()


def test_b124_a_large_data_url_is_refused_by_its_size_or_type(echo: Api) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (40 << 20)}}
    assert echo.post(CHAT, {"messages": [{"role": "user", "content": [image]}]}).status_code in (400, 413)
    echo.alive()
