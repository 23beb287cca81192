"""Public bugs of other engines, part C: seeds, mixed batches, zeros, penalties, logprobs. On SmolLM2."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cases.conftest import VOCAB, Api, strict

PROMPT = "The best thing about the sea is"


def tokens(answer: dict[str, Any]) -> Any:
    return answer["choices"][0]["logprobs"]


def test_b053_a_seed_holds_beside_unseeded_requests(real: Api) -> None:
    seeded = {"seed": 42, "temperature": 0.8, "max_tokens": 16, "logprobs": 0}
    alone = tokens(real.complete(PROMPT, **seeded))
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            noise = [pool.submit(real.complete, "Once upon", temperature=1.0, max_tokens=16) for _ in range(5)]
            assert tokens(real.complete(PROMPT, **seeded)) == alone
            for other in noise:
                other.result()


@pytest.mark.parametrize("others", [1, 7, 43])
def test_b055_b056_neighbours_change_nothing(real: Api, others: int) -> None:
    rows = [{"temperature": 0}, {"temperature": 1e-4, "seed": 1}, {"temperature": 1.0, "seed": 2}]
    alone = [tokens(real.complete(PROMPT, max_tokens=12, logprobs=2, **row)) for row in rows]
    with ThreadPoolExecutor(others + 3) as pool:
        noise = [pool.submit(real.complete, "word " * (1 + 3 * index), max_tokens=12, temperature=1.0) for index in range(others)]
        together = [pool.submit(real.complete, PROMPT, max_tokens=12, logprobs=2, **row) for row in rows]
        assert [tokens(one.result()) for one in together] == alone
        for other in noise:
            other.result()


def test_b058_zero_is_a_value(real: Api) -> None:
    assert real.post("/v1/completions", {"prompt": PROMPT, "top_p": 0}).status_code == 400
    assert real.post("/v1/completions", {"prompt": PROMPT, "n": 0}).status_code == 400
    assert real.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 0}).status_code == 400
    first, second = (real.complete(PROMPT, seed=0, temperature=1.5, max_tokens=12)["choices"][0]["text"] for _ in range(2))
    assert first == second
    assert real.complete(PROMPT, logprobs=0, max_tokens=2)["choices"][0]["logprobs"]["token_logprobs"]


def test_b059_forms_of_top_k(real: Api) -> None:
    greedy = real.complete(PROMPT, max_tokens=8)["choices"][0]["text"]
    off = real.complete(PROMPT, max_tokens=8, temperature=1.0, seed=5)["choices"][0]["text"]
    for value in (-1, 0, VOCAB, 9_999_999):
        assert real.complete(PROMPT, max_tokens=8, temperature=1.0, seed=5, top_k=value)["choices"][0]["text"] == off
    assert real.complete(PROMPT, max_tokens=8, temperature=1.0, seed=5, top_k=1)["choices"][0]["text"] == greedy
    for wrong in (0.01, -2, "5"):
        assert real.post("/v1/completions", {"prompt": PROMPT, "top_k": wrong}).status_code == 400
    real.alive()


def test_b061_scope_of_penalties(real: Api) -> None:
    """Reported logprobs are raw, so the scope shows in what is drawn: presence and frequency leave the first token alone."""
    prompt = "red blue red blue red blue red"
    first = real.complete(prompt, max_tokens=1, logprobs=5)["choices"][0]
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert real.complete(prompt, max_tokens=1, logprobs=5, **penalty)["choices"][0] == first
    repeated = real.complete(prompt, max_tokens=1, logprobs=5, repetition_penalty=100.0)["choices"][0]
    assert first["text"].strip() == "blue" and repeated["text"].strip() not in ("red", "blue")
    assert repeated["logprobs"]["top_logprobs"] == first["logprobs"]["top_logprobs"]


def test_b062_penalties_in_a_batch(real: Api) -> None:
    fields = {"frequency_penalty": 1.0, "max_tokens": 16, "logprobs": 0}
    alone = tokens(real.complete("one two", **fields))
    with ThreadPoolExecutor(3) as pool:
        noise = [pool.submit(real.complete, "long " * 150, max_tokens=16) for _ in range(2)]
        assert tokens(real.complete("one two", **fields)) == alone
        for other in noise:
            other.result()


def test_b064_flags_of_logprobs(real: Api) -> None:
    plain = real.chat("hi", max_tokens=2, logprobs=True)["choices"][0]["logprobs"]["content"]
    zero = real.chat("hi", max_tokens=2, logprobs=True, top_logprobs=0)["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in plain] == [[], []] and plain == zero
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert real.post("/v1/chat/completions", {**chat, "top_logprobs": 2}).status_code == 400
    assert real.post("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 21}).status_code == 400
    assert real.post("/v1/completions", {"prompt": "a", "logprobs": 21}).status_code == 400


def test_b065_one_entry_per_token_in_streams(real: Api) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell a story"}], "temperature": 1.5, "seed": 3, "max_tokens": 40}
    body |= {"logprobs": True, "top_logprobs": 1, "stop": ["qqqq"]}
    whole = real.post("/v1/chat/completions", body).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    choices = [choice for chunk in real.stream("/v1/chat/completions", body) for choice in chunk["choices"]]
    streamed = [entry for choice in choices for entry in (choice.get("logprobs") or {"content": []})["content"]]
    assert streamed == entries and len(entries) == whole["usage"]["completion_tokens"]
    shown = [entry for entry in entries if entry["token"] != "<|im_end|>"]
    assert bytes(byte for entry in shown for byte in entry["bytes"]).decode(errors="replace") == whole["choices"][0]["message"]["content"]
    assert any(entry["top_logprobs"][0]["token"] != entry["token"] for entry in entries)  # the sampled token, not the top one


def test_b067_strict_json_with_banned_tokens(real: Api) -> None:
    answer = real.post("/v1/completions", {"prompt": PROMPT, "logprobs": 5, "max_tokens": 3, "allowed_token_ids": [5], "logit_bias": {"7": -100}})
    assert answer.status_code == 200 and strict(answer.text)


def test_b068_offsets_agree_in_streams(real: Api) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "logprobs": 1, "temperature": 0}
    whole = real.post("/v1/completions", body).json()["choices"][0]["logprobs"]["text_offset"]
    choices = [choice for chunk in real.stream("/v1/completions", body) for choice in chunk["choices"]]
    streamed = [offset for choice in choices for offset in (choice["logprobs"] or {"text_offset": []})["text_offset"]]
    assert streamed == whole


def test_b070_logprobs_are_capped(real: Api) -> None:
    for value in (-1, VOCAB, 21):
        assert real.post("/v1/completions", {"prompt": PROMPT, "prompt_logprobs": value}).status_code == 400
    assert real.post("/v1/completions", {"prompt": PROMPT, "allowed_token_ids": [-1]}).status_code == 400
    real.alive()


def test_b096_prompt_logprobs_with_a_warm_cache_and_chunks(real: Api) -> None:
    prompt = "x " * 33  # two blocks and a token
    first, second = (real.complete(prompt, echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"] for _ in range(2))
    assert first == second and None not in first["token_logprobs"][1:]
    real.alive()


def test_b093_salts_keep_prefixes_apart(real: Api) -> None:
    prompt = "Salt and pepper stand on every table of the house by the sea, and nobody knows why. " * 3

    def cached(**fields: Any) -> int:
        return int(real.complete(prompt, max_tokens=1, **fields)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="two") == 0 and cached() == 0
    assert cached(cache_salt="one") > 0 and cached(cache_salt="two") > 0
    assert cached(cache_salt="") > 0 and cached(cache_salt=None) > 0  # the same as absent
    assert real.post("/v1/completions", {"prompt": prompt, "cache_salt": "x" * 129}).status_code == 400
