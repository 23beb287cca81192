"""Reasoning of every family, whole and cut anywhere."""

from __future__ import annotations

import pytest

from llmx.answers.events import Answer, joined
from llmx.answers.parser import answer_parser
from llmx.answers.reasoning_formats import REASONING_FORMATS
from tests.answers.test_tool_formats import cut, parse
from tests.answers.wire import CALLS, TOOLS, WIRE

MARKED = [form for form in REASONING_FORMATS.values() if form.end and not form.in_content]


def read(name: str, pieces: list[str], prompt: str = "") -> Answer:
    parser = answer_parser(REASONING_FORMATS[name], None, None, prompt)
    return joined([*[event for piece in pieces for event in parser.feed(piece)], *parser.finish()])


def both(name: str, text: str, prompt: str = "") -> Answer:
    """The answer, the same whole and in 200 random cuts."""
    whole = read(name, [text], prompt)
    for seed in range(200):
        assert read(name, cut(text, seed), prompt) == whole
    return whole


def test_enough_families() -> None:
    assert len(REASONING_FORMATS) >= 34


@pytest.mark.parametrize("form", MARKED, ids=lambda form: form.name)
def test_reasoning_then_content(form) -> None:  # type: ignore[no-untyped-def]
    wanted = Answer("The answer:\n\n42 < 43", "First,\n\nI add < them.")
    text = f"{form.start}\nFirst,\n\nI add < them.\n{form.end}\n\nThe answer:\n\n42 < 43"
    assert both(form.name, text) == wanted
    assert both(form.name, text.removeprefix(form.start), prompt=f"<|assistant|>\n{form.start}\n") == wanted  # the template opened it
    assert both(form.name, "The answer:\n\n42 < 43", prompt=f"{form.start}\n\n{form.end}\n\n") == Answer("The answer:\n\n42 < 43")  # and closed it


@pytest.mark.parametrize("form", MARKED, ids=lambda form: form.name)
def test_cut_off_while_thinking(form) -> None:  # type: ignore[no-untyped-def]
    """B118: what was thought is reasoning only, in both modes."""
    assert both(form.name, f"{form.start}still thinking about {form.end[:3]}") == Answer("", f"still thinking about {form.end[:3]}")
    assert both(form.name, "still thinking", prompt=form.start + "\n") == Answer("", "still thinking")


@pytest.mark.parametrize("form", MARKED, ids=lambda form: form.name)
def test_without_markers(form) -> None:  # type: ignore[no-untyped-def]
    assert both(form.name, "Just an answer.") == (Answer("", "Just an answer.") if form.at_once else Answer("Just an answer."))


def test_markers_of_the_content_are_left_out() -> None:
    assert both("hunyuan_a13b", "<think>\nhm\n</think>\n<answer>\nYes.\n</answer>") == Answer("Yes.", "hm")


def test_reasoning_that_stays_in_the_content() -> None:
    text = "<think>hm</think>Yes."
    assert both("minimax_m2_append_think", text) == Answer(text)


def test_reasoning_then_a_call() -> None:
    """B120: the end markers are never in the content; a call in the thoughts is none."""
    call = WIRE["hermes"](CALLS["empty"])
    text = f"<think>t {call}</think>{call}"
    for seed in range(200):
        answer = parse("hermes", cut(text, seed), reasoning="qwen3")
        assert answer.reasoning == f"t {call}" and answer.content == "" and [c.name for c in answer.calls] == ["ping"]


HARMONY_TEXT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
HARMONY = (
    "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
)


def test_harmony() -> None:
    for seed in range(200):
        parser = answer_parser(REASONING_FORMATS["openai_gptoss"], None, TOOLS, "<|start|>assistant")
        events = [event for piece in cut(HARMONY_TEXT, seed) for event in parser.feed(piece)]
        assert joined([*events, *parser.finish()]) == Answer("Yes.", "Hm.")
        answer = parse("openai", cut(HARMONY, seed), reasoning="openai_gptoss", prompt="<|start|>assistant")
        assert (answer.reasoning, answer.content) == ("Need the weather.", "I will look.")
        assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", '{"city": "Rome"}')]


def test_harmony_is_not_spoken() -> None:
    for pieces in (["Just text."], list("Just text.")):
        assert read("openai_gptoss", pieces) == Answer("Just text.")
