"""Grammars that begin behind the reasoning: for every format with an end marker, at the level of tokens, and in an engine."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from llmx import LLM, SamplingParams
from llmx.answers.reasoning_formats import REASONING_FORMATS
from llmx.structured.reasoning import MarkerTokens, ReasoningGate
from llmx.structured_params import ReasoningSpan, StructuredOutputsParams

FORMATS = [form for form in REASONING_FORMATS.values() if form.end]
CLOSED = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
THINK = ReasoningSpan("<think>", "</think>")


def allowed(row: np.ndarray) -> set[int]:
    return {token for token in range(len(row) * 32) if row[token >> 5] >> (token & 31) & 1}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("inside", [False, True])
def test_the_grammars_tokens_are_those_behind_the_marker_however_text_is_cut(form: Any, inside: bool) -> None:
    """Random vocabularies of pieces of one text; no piece crosses the end marker with more than white space."""
    rng = np.random.default_rng(3)
    head = ("" if inside else form.start) + "some " + form.end[:-1] + " thought" + form.end
    for _ in range(50):
        cuts = sorted({0, len(head), *rng.integers(0, len(head), 6).tolist()})
        pieces = [head[a:b].encode() for a, b in zip(cuts, cuts[1:], strict=False)]
        vocabulary = [*pieces, b"answer", b"more"]
        span = ReasoningSpan(form.start, form.end, inside)
        gate = ReasoningGate(MarkerTokens(span, vocabulary), span, ())
        ours: list[int] = []
        for token in range(len(vocabulary)):
            ours += gate.take([token])
        assert ours == [len(pieces), len(pieces) + 1]
        at_once = ReasoningGate(MarkerTokens(span, vocabulary), span, ())
        assert at_once.take(range(len(vocabulary))) == ours


def test_an_answer_without_reasoning_is_the_grammars_from_its_first_token() -> None:
    vocabulary = [b"<th", b"e>", b"{}", b"ink>", b"</think>", b"x"]
    gate = ReasoningGate(MarkerTokens(THINK, vocabulary), THINK, ())
    assert gate.take([0]) == [] and gate.undecided
    assert gate.take([1, 2]) == [0, 1, 2] and gate.over


def test_masks_inside_forbid_the_end_and_tokens_that_carry_an_answer_past_the_marker() -> None:
    vocabulary = [b"</think>", b"</thi", b"nk>{", b"nk>\n", b"a</think>b", b"<think>", b"EOS", b">x", b"nk"]
    inside = ReasoningSpan("<think>", "</think>", inside=True)
    gate = ReasoningGate(MarkerTokens(inside, vocabulary), inside, (6,))
    row = np.zeros(1, np.uint32)
    gate.inside_mask(row)
    assert allowed(row) == set(range(32)) - {4, 6}
    gate.take([1])
    gate.inside_mask(row)
    assert allowed(row) == set(range(32)) - {2, 4, 6}
    gate.take([8])
    gate.inside_mask(row)
    assert allowed(row) == set(range(32)) - {4, 6, 7}
    before = ReasoningGate(MarkerTokens(THINK, vocabulary), THINK, ())
    row[:] = 0
    before.open_start(row)
    assert allowed(row) == {5}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_engine_reasons_freely_and_then_answers_in_the_form(tiny: LLM, inside: bool, seed: int) -> None:
    """A random model whose marker is one letter each: A opens, Z ends. Its reasoning is no JSON, what follows is."""
    after = ReasoningSpan("A", "Z", inside)
    spelled = {tiny.tokenizer.token_bytes(token): token for token in range(256)}
    bias = {spelled[b"Z"]: 5.0 if inside else 20.0, 257: 100.0}  # EOS is wanted, and may not come inside
    if not inside:
        bias[spelled[b"A"]] = 20.0
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=300, logit_bias=bias, structured_outputs=StructuredOutputsParams(json=CLOSED, after=after))
    (output,) = tiny.generate("x", params, use_tqdm=False)
    answer = output.outputs[0]
    assert answer.finish_reason == "stop", answer.error
    said = b"".join(tiny.tokenizer.token_bytes(token) for token in answer.token_ids if token != 257)
    thought, _, rest = said.partition(b"Z")
    assert inside or thought.startswith(b"A")
    assert set(json.loads(rest)) == {"a"}


def test_an_engine_may_answer_without_reasoning(tiny: LLM) -> None:
    """The start marker begins like an answer that the grammar takes."""
    wanted = StructuredOutputsParams(regex="<b[0-9]{3}", after=ReasoningSpan("<a>", "</a>"))
    for seed in range(6):
        params = SamplingParams(temperature=2.0, seed=seed, max_tokens=12, structured_outputs=wanted)
        (output,) = tiny.generate("x", params, use_tqdm=False)
        said = b"".join(tiny.tokenizer.token_bytes(token) for token in output.outputs[0].token_ids if token != 257)
        assert said.startswith(b"<a>") or re.fullmatch(rb"<b[0-9]{3}", said)
