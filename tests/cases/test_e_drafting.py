"""Public bugs of other engines, part E: drafts that change an answer, go past its end, or break a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from llmx import LLM, SamplingParams, StructuredOutputsParams
from tests.cases.conftest import CONTEXT, Api, serve
from tests.cases.echo import install

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
TICK = "tick tock tick tock tick tock"


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The echo server with drafts; every answer repeats its prompt, so they are right."""
    environ = install(tmp_path_factory.mktemp("echo_drafting"))
    flags = ("--speculative-config", json.dumps(NGRAM), "--per-request-spec-decode-metrics", "summary", "--reasoning-parser", "qwen3")
    with serve("--platform", "echo", "--max-model-len", str(CONTEXT), "--num-blocks", "200", *flags, environ=environ) as running:
        with closing(Api(running.url)) as api:
            yield api


def _plain(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """An answer without what must differ between two servers, and its draft counts."""
    counts = body["usage"].pop("completion_tokens_details", {})
    return {"choices": body["choices"], "usage": {key: body["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}}, counts


def test_b105_repetitive_prompt_real_model() -> None:
    params, answers = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2), []
    for spec in (None, NGRAM):
        with LLM(platform="cpu", threads=1, dtype="float32", max_model_len=256, num_blocks=100, speculative_config=spec) as llm:
            if spec:
                llm._engine.scheduler.drafting.fixed = True
            answers.append(llm.generate("delta " * 40, params)[0].outputs[0])
            steps = llm._engine.stats().steps
    assert (answers[0].token_ids, answers[0].logprobs) == (answers[1].token_ids, answers[1].logprobs)
    assert answers[1].num_accepted_tokens > 0 and steps < 24


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5},
        {"max_tokens": 40, "stop": ["ck tick to"]},
        {"max_tokens": 40, "stop": ["ck tick to"], "include_stop_str_in_output": True},
        {"max_tokens": 40, "logprobs": 2, "stop": ["tock tick tock ti"]},
        {"max_tokens": 40},  # its end is the model's EOS
        {"max_tokens": 9, "n": 2, "temperature": 1.0, "seed": 3},
    ],
    ids=str,
)
def test_b106_nothing_past_the_end(echo: Api, drafting: Api, fields: dict[str, Any]) -> None:
    prompt = " ".join([TICK] * 3)
    wanted, none = _plain(echo.complete(prompt, **fields))
    got, counts = _plain(drafting.complete(prompt, **fields))
    assert got == wanted and not none
    assert counts["accepted_prediction_tokens"] > 0
    assert got["usage"]["completion_tokens"] <= fields["max_tokens"] * fields.get("n", 1)


def test_b106_streams_show_no_more(echo: Api, drafting: Api) -> None:
    body = {"prompt": " ".join([TICK] * 3), "temperature": 0, "max_tokens": 40, "stop": ["ck tick to"], "stream_options": {"include_usage": True}}
    texts, tokens = [], []
    for api in (echo, drafting):
        chunks = api.stream("/v1/completions", body)
        texts.append("".join(choice["text"] for chunk in chunks for choice in chunk["choices"]))
        tokens.append(chunks[-1]["usage"]["completion_tokens"])
    assert texts[0] == texts[1] and tokens[0] == tokens[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 10, "logit_bias": {"2": 40}},  # EOS is what the model wants most
        {"bad_words": [" tock"]},
        {"logit_bias": {"9": 35}},
        {"repetition_penalty": 1.3, "presence_penalty": 0.7},
        {"allowed_token_ids": [5, 6, 7, 8, 9]},
    ],
    ids=str,
)
def test_b107_min_tokens_bans_and_bias(echo: Api, drafting: Api, fields: dict[str, Any]) -> None:
    prompt = " ".join([TICK] * 2)
    wanted, _ = _plain(echo.complete(prompt, max_tokens=20, logprobs=1, **fields))
    assert _plain(drafting.complete(prompt, max_tokens=20, logprobs=1, **fields))[0] == wanted


def test_b107_a_batch_in_which_one_request_has_no_drafts(echo: Api, drafting: Api) -> None:
    prompts = [" ".join([TICK] * 3), "quick brown foxes jump over lazy dogs", " ".join(["one two"] * 9)]
    wanted, _ = _plain(echo.complete(prompts, max_tokens=30))
    assert _plain(drafting.complete(prompts, max_tokens=30))[0] == wanted


def test_b050_drafts_carry_nothing_past_the_end_of_the_reasoning(drafting: Api) -> None:
    """The repeated text makes drafts that go from the thought over its end marker into an answer that the schema forbids."""
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [{"n": "one"}, {"n": "two"}]}}}
    thought = "is it three or is it three or is it three? "
    body = {"messages": [{"role": "user", "content": f"<think>{thought}</think>" + thought * 2}], "temperature": 0, "max_tokens": 100}
    free = drafting.post("/v1/chat/completions", body).json()
    assert free["choices"][0]["message"]["content"].count("three") == 6
    assert free["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 4
    held = drafting.post("/v1/chat/completions", {**body, "response_format": wanted}).json()["choices"][0]
    assert held["message"]["reasoning"].strip() == thought.strip() and held["finish_reason"] == "stop"
    assert json.loads(held["message"]["content"])["n"] in ("one", "two")


def test_drafts_are_counted(drafting: Api) -> None:
    drafting.complete(" ".join([TICK] * 3), max_tokens=40)
    text = drafting.http.get("/metrics").text

    def value(name: str, label: str = "") -> float:
        found = re.search(rf"^llmx:spec_decode_num_{name}_total{{[^}}]*{label}[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    accepted = [value("accepted_tokens_per_pos", f'position="{position}"') for position in range(4)]
    assert 0 < value("accepted_tokens") == sum(accepted) <= value("draft_tokens") and accepted == sorted(accepted, reverse=True)
    assert value("drafts") >= accepted[0]
    shown = drafting.http.get("/engine/state").json()["engine"]["drafts"]
    assert shown == {"made": value("draft_tokens"), "accepted": value("accepted_tokens")}


def test_b104_a_grammar_beside_drafts() -> None:
    """A request with a grammar brings drafts, which may break it, and so do those beside it; all end as without."""
    tags = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 3, "maxItems": 3}
    schema = {"type": "object", "properties": {"tags": tags}, "required": ["tags"]}
    asked = [
        SamplingParams(temperature=0.0, max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema)),
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    ]
    shown = 'Three colours as JSON: {"tags": ["red", "red", "blue"]}, {"tags": ["red", "red", "blue"]}.\n'
    prompts, answers = [shown, "delta " * 30], []
    for spec in (None, NGRAM):
        with LLM(platform="cpu", threads=1, max_model_len=256, num_blocks=100, speculative_config=spec) as llm:
            if spec:
                llm._engine.scheduler.drafting.fixed = True
            answers.append([output.outputs[0] for output in llm.generate(prompts, asked)])
    assert [one.token_ids for one in answers[0]] == [one.token_ids for one in answers[1]]
    assert len(json.loads(answers[1][0].text)["tags"]) == 3 and answers[1][0].finish_reason == "stop"
    assert answers[1][0].num_draft_tokens > answers[1][0].num_accepted_tokens > 4 and answers[1][1].num_accepted_tokens > 10
