"""Thinking budgets: reasoning ends after so many tokens, for every format with an end marker, with a form behind it and without."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from llmx import LLM, SamplingParams
from llmx.answers.budget import ReasoningCount
from llmx.answers.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from llmx.answers.reasoning_track import ReasoningTrack
from llmx.errors import RequestError
from llmx.structured.reasoning import MarkerTokens, ReasoningGate
from llmx.structured_params import ReasoningSpan, StructuredOutputsParams

FORMATS = [form for form in REASONING_FORMATS.values() if form.end]
CLOSED = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
WORD = b" thought"


def allowed(gate: ReasoningGate, tokens: int) -> list[int]:
    row = np.zeros((tokens + 31) // 32, np.uint32)
    gate.inside_mask(row)
    return [token for token in range(tokens) if row[token >> 5] >> (token & 31) & 1]


def vocabulary_of(form: ReasoningFormat, rng: np.random.Generator) -> list[bytes]:
    """Single letters of both markers, random pieces of the end marker, a word, and tokens that cross the marker."""
    end = form.end.encode()
    cuts = [sorted(rng.integers(0, len(end) + 1, 2).tolist()) for _ in range(6)]
    pieces = {bytes([letter]) for letter in (form.start + form.end).encode()} | {end[a:b] for a, b in cuts if b > a}
    return [*sorted(pieces), WORD, b"x" + end[:1], end[-1:] + b"y"]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("inside", [False, True])
def test_a_spent_budget_leaves_one_way_and_it_spells_the_marker(form: ReasoningFormat, inside: bool) -> None:
    rng = np.random.default_rng(5)
    for budget in (0, 1, 4):
        vocabulary = vocabulary_of(form, rng)
        span = ReasoningSpan(form.start, form.end, inside, budget)
        gate = ReasoningGate(MarkerTokens(span, vocabulary), span, None)
        if not inside:
            gate.take([vocabulary.index(bytes([letter])) for letter in form.start.encode()])
        for _ in range(budget):
            assert allowed(gate, len(vocabulary)) == list(range(len(vocabulary)))  # nothing is forbidden before, the end of the answer included
            gate.take([vocabulary.index(WORD)])
        said = b""
        while not gate.over:
            (token,) = allowed(gate, len(vocabulary))
            said += vocabulary[token]
            gate.take([token])
        assert said == form.end.encode()


def test_a_marker_that_has_begun_goes_on() -> None:
    vocabulary = [b"</", b"think", b">", b"<", b"/", WORD]
    span = ReasoningSpan("<think>", "</think>", True, 2)
    gate = ReasoningGate(MarkerTokens(span, vocabulary), span, None)
    gate.take([5, 3])
    assert allowed(gate, 6) == [4]
    gate.take([4, 1])
    assert allowed(gate, 6) == [2] and not gate.take([2]) and gate.over


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_tokens_are_counted_between_the_markers_however_they_are_cut(form: ReasoningFormat) -> None:
    """A token is reasoning when it begins there: counted by where it begins in the whole text."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        lead, thought = " " * int(rng.integers(0, 3)), "so " + form.end[:-1] + " it is"
        said = (lead + form.start + thought + form.end + "answer").encode()
        cuts = sorted({0, len(said), *rng.integers(0, len(said), 9).tolist()})
        first, last = len((lead + form.start).encode()), len((lead + form.start + thought).encode())
        track = ReasoningTrack(ReasoningSpan(form.start, form.end))
        for a, b in zip(cuts, cuts[1:], strict=False):
            track.take(said[a:b])
        assert track.over and track.tokens == sum(first <= cut < last for cut in cuts[:-1])


@pytest.mark.parametrize(
    ("prompt", "said", "wanted"),
    [
        ("", ["<think>", "a", "b", "</think>", "c"], 2),
        ("", ["a", "b"], 0),
        ("", ["<think>", "a", "</th"], 2),  # cut off: it was no end marker
        ("user\n<think>", ["a", "b", "</think>", "c"], 2),
        ("user\n<think>\n\n</think>\n\n", ["a", "b"], 0),
    ],
)
def test_counts_follow_the_prompt(prompt: str, said: list[str], wanted: int) -> None:
    count = ReasoningCount(REASONING_FORMATS["qwen3"], prompt, lambda token: said[token].encode())
    for length in range(len(said) + 1):
        counted = count.upto(range(length))
    assert counted == wanted


def test_counts_of_an_answer_that_begins_inside_leave_out_a_marker_that_comes_all_the_same() -> None:
    said = ["<think>", "a", "</think>", "c"]
    assert ReasoningCount(REASONING_FORMATS["deepseek_r1"], "", lambda token: said[token].encode()).upto(range(4)) == 1
    assert ReasoningCount(REASONING_FORMATS["deepseek_r1"], "", lambda token: said[token].encode()).upto(range(1, 4)) == 1


def test_counts_of_messages_on_channels() -> None:
    said = "<|channel|> analysis <|message|> a é b <|end|> <|start|> assistant <|channel|> final <|message|> c <|return|>"
    bits = [piece.encode() for piece in said.split()]
    bits[4:5] = [bits[4][:1], bits[4][1:]]  # a character of two tokens
    count = ReasoningCount(REASONING_FORMATS["openai_gptoss"], "<|start|>assistant", bits.__getitem__)
    assert count.upto(range(len(bits))) == 4


def spelled(llm: LLM) -> dict[bytes, int]:
    return {llm.tokenizer.token_bytes(token): token for token in range(256)}


def said_by(llm: LLM, params: SamplingParams) -> list[bytes]:
    (output,) = llm.generate("x", params, use_tqdm=False)
    assert all(answer.finish_reason in ("stop", "length") for answer in output.outputs), output.outputs[0].error
    return [b"".join(llm.tokenizer.token_bytes(token) for token in answer.token_ids if token != 257) for answer in output.outputs]


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_without_a_form_the_answer_is_the_free_one_up_to_its_budget(tiny: LLM, budget: int) -> None:
    """n answers, seeded: each is cut where its own budget ends, and what was drawn before is what would have been drawn."""
    free: dict[str, Any] = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 40, "ignore_eos": True, "logit_bias": {spelled(tiny)[b"Z"]: -100.0}}
    plain = said_by(tiny, SamplingParams(**free))
    after = ReasoningSpan("A", "ZQ", True, budget)
    got = said_by(tiny, SamplingParams(**free, structured_outputs=StructuredOutputsParams(after=after)))
    (output,) = tiny.generate("x", SamplingParams(**free), use_tqdm=False)
    first = [b"".join(tiny.tokenizer.token_bytes(token) for token in answer.token_ids[:budget]) for answer in output.outputs]
    assert len(set(plain)) == 3
    for thought, answer in zip(first, got, strict=True):
        assert answer.startswith(thought + b"ZQ")


def test_reasoning_that_ends_by_itself_is_left_alone(tiny: LLM) -> None:
    free: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 30, "ignore_eos": True}
    plain = said_by(tiny, SamplingParams(**free))
    for after in (ReasoningSpan("AB", "ZQ", False, 0), ReasoningSpan("AB", "ZQ", True, 30)):  # never begun; never spent
        assert said_by(tiny, SamplingParams(**free, structured_outputs=StructuredOutputsParams(after=after))) == plain


@pytest.mark.parametrize("inside", [False, True])
def test_a_form_begins_behind_a_budget(tiny: LLM, inside: bool) -> None:
    bias = {257: 100.0} | ({} if inside else {spelled(tiny)[b"A"]: 20.0})
    wanted = StructuredOutputsParams(json=CLOSED, after=ReasoningSpan("A", "ZQ", inside, 4))
    (said,) = said_by(tiny, SamplingParams(temperature=1.0, seed=1, max_tokens=300, logit_bias=bias, structured_outputs=wanted))
    _, _, rest = said.partition(b"ZQ")
    assert set(json.loads(rest)) == {"a"}


def test_a_request_is_masked_no_longer_than_it_reasons(tiny: LLM) -> None:
    after = ReasoningSpan("A", "Z", True, 3)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, structured_outputs=StructuredOutputsParams(after=after))
    engine, late = tiny._engine, []
    submit = engine.executor.submit
    try:
        engine.executor.submit = lambda step: late.append(step.late) or submit(step)  # type: ignore[method-assign]
        said_by(tiny, params)
    finally:
        del engine.executor.submit
    assert late.count(True) == 5 and late.count(False) == 7  # three thoughts, the marker, and the step that sees that it is over


def test_what_cannot_be_is_refused(tiny: LLM) -> None:
    def refused(**given: Any) -> str:
        with pytest.raises(RequestError) as caught:
            tiny.generate("x", SamplingParams(max_tokens=2, **given), use_tqdm=False)
        assert caught.value.field == "thinking_token_budget"
        return str(caught.value)

    assert "--reasoning-parser NAME" in refused(thinking_token_budget=5)
    after = StructuredOutputsParams(after=ReasoningSpan("A", "Z", True, 3))
    assert "allowed_token_ids" in refused(structured_outputs=after, allowed_token_ids=(5, 6))
    for wrong in (-2, True, 1.5):
        with pytest.raises(RequestError, match="thinking_token_budget is"):
            SamplingParams(thinking_token_budget=wrong)  # type: ignore[arg-type]
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
