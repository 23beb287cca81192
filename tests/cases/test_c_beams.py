"""Public bugs of other engines, part C: beam search (B072). On SmolLM2, over HTTP, against the offline search, which equals transformers'."""

from __future__ import annotations

from typing import Any

import pytest

from llmx import LLM, BeamSearchParams
from tests.cases.conftest import CONTEXT, Api

COLOURS = "The colors of the rainbow are red, green and"
SHORT = "Say only yes."


def beams(api: Api, prompt: Any, width: int, **fields: Any) -> list[dict[str, Any]]:
    answer = api.complete(prompt, use_beam_search=True, n=width, max_tokens=10, **fields)
    assert [choice["index"] for choice in answer["choices"]] == list(range(width))
    return list(answer["choices"])


def shown(api: Api, ids: list[int]) -> str:
    return str(api.post("/detokenize", {"tokens": ids}).json()["prompt"])


@pytest.mark.parametrize("width", [2, 4, 12])
def test_b072_stop_strings_and_logprobs_at_every_width(real: Api, width: int) -> None:
    choices = beams(real, COLOURS, width, stop=["blue"], logprobs=5, return_token_ids=True)
    scores = []
    for choice in choices:
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        assert len(ids) == len(logprobs) <= 10 and all(len(top) >= 5 for top in choice["logprobs"]["top_logprobs"])
        whole = shown(real, ids)
        assert (choice["finish_reason"], choice["stop_reason"]) == (("stop", "blue") if "blue" in whole else ("length", None))
        assert choice["text"] == whole.split("blue")[0] and ("blue" in whole or len(ids) == 10)
        scores.append(sum(logprobs) / len(ids))
    assert scores == sorted(scores, reverse=True) and choices[0]["text"] == " "
    included = beams(real, COLOURS, width, stop=["blue"], include_stop_str_in_output=True)
    assert included[0]["text"] == " blue"


def test_b072_the_answers_are_those_of_the_offline_search(real: Api) -> None:
    over_http = beams(real, COLOURS, 4, logprobs=0, return_token_ids=True, length_penalty=0.5)
    with LLM(platform="cpu", threads=1, max_model_len=CONTEXT, num_blocks=400) as llm:
        (offline,) = llm.beam_search([COLOURS], BeamSearchParams(4, 10, length_penalty=0.5, include_stop_str_in_output=True))
    length = len(over_http[0]["prompt_token_ids"])
    assert [choice["token_ids"] for choice in over_http] == [one.tokens[length:] for one in offline.sequences]
    for choice, one in zip(over_http, offline.sequences, strict=True):
        assert sum(choice["logprobs"]["token_logprobs"]) == pytest.approx(one.cum_logprob, abs=1e-6)


def test_b072_an_end_token_ends_a_beam_and_is_not_shown(real: Api) -> None:
    fields = {"use_beam_search": True, "n": 3, "max_tokens": 10, "length_penalty": -8.0}
    first = real.chat(SHORT, **fields)["choices"][0]
    assert (first["message"]["content"], first["finish_reason"], first["stop_reason"]) == ("Yes.", "stop", None)
    by_id = real.chat(SHORT, stop_token_ids=[30], **fields)["choices"][0]  # "."
    assert (by_id["message"]["content"], by_id["finish_reason"], by_id["stop_reason"]) == ("Yes", "stop", 30)
    endless = real.chat(SHORT, ignore_eos=True, **fields)["choices"]
    assert {choice["finish_reason"] for choice in endless} == {"length"}


def test_b072_one_beam_is_greedy(real: Api) -> None:
    for ask, asked in ((real.complete, COLOURS), (real.chat, SHORT)):
        plain, one = ask(asked, max_tokens=20), ask(asked, max_tokens=20, use_beam_search=True)
        assert one["choices"] == plain["choices"] and one["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_b072_the_best_of_a_wider_search(real: Api) -> None:
    wide = beams(real, COLOURS, 4)
    assert [choice["text"] for choice in beams(real, COLOURS, 2, best_of=4)] == [choice["text"] for choice in wide[:2]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.7}, "temperature"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 3}}, "logit_bias"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        ({"use_beam_search": 1}, "use_beam_search"),
    ],
)
def test_b072_what_does_not_go_with_it_is_refused(real: Api, fields: dict[str, Any], param: str) -> None:
    answer = real.post("/v1/completions", {"prompt": COLOURS, "use_beam_search": True, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    real.alive()
