"""The embedded model on the CPU platform against transformers in fp32 on the dequantized weights (greedy_reference.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("greedy_reference.json").read_text())["rows"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=48)
# int8 activations (past position 64, and in most of gate and up) move a logit by about 0.1 here; two tokens closer than this in fp32
# may change places. How many prompts meet such a near-tie differs between instruction-set levels.
NEAR_TIE = 0.25


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(platform="cpu", threads=1, kv_cache_memory_bytes="512Mi") as one:
        yield one


def _compare(llm: LLM, near_tie: float) -> tuple[int, int]:
    """(prompts equal to the end, tokens compared); fails on a difference where the reference was sure."""
    outputs = llm.generate([row["prompt"] for row in ROWS], GREEDY)
    equal = compared = 0
    for row, output in zip(ROWS, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        for at, (token, expected) in enumerate(zip(tokens, row["answer"], strict=False)):
            compared += 1
            if token != expected:
                assert row["margins"][at] < near_tie, f"token {at} of {row['text']!r} is {token}, not {expected}, with a margin of {row['margins'][at]}"
                break
        else:
            assert len(tokens) == len(row["answer"])
            equal += 1
    return equal, compared


def test_greedy_tokens_equal_the_reference_up_to_near_ties(llm: LLM) -> None:
    equal, compared = _compare(llm, NEAR_TIE)
    assert equal >= 11 and compared >= 500, (equal, compared)


def test_float32_equals_the_reference() -> None:
    with LLM(platform="cpu", threads=1, dtype="float32", kv_cache_memory_bytes="512Mi") as llm:
        equal, _ = _compare(llm, 0.005)
    assert equal >= 19


def test_the_capital_of_france(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": "What is the capital of France?"}])[0].outputs[0]
    assert "Paris" in output.text and output.finish_reason == "stop"


def test_answers_do_not_depend_on_neighbours(llm: LLM) -> None:
    """Rule 7 through the engine: alone, in a batch, and after a prefix hit."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
    prompts = [row["prompt"] for row in ROWS]
    together = llm.generate(prompts, params)
    for index in (0, 9, 19):
        alone = llm.generate([prompts[index]], params)[0].outputs[0]
        batch = together[index].outputs[0]
        assert alone.token_ids == batch.token_ids
        assert alone.logprobs == batch.logprobs  # every bit of every logprob
    assert llm._engine.kv.prefix_hits > 0 and llm._engine.kv.blocks_held == 0
