"""Formats told from a chat template, or named."""

from __future__ import annotations

import pytest

from llmx.answers.choose import reasoning_format, tool_format
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.tool_formats import TOOL_FORMATS
from llmx.errors import ConfigError

HERMES = 'For each call return <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES, "hermes"),
        ("<tool_call>\n<function=name>\n<parameter=p>", "qwen3_coder"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>name\n```json", "deepseek_v3"),
        ("<tool_call>{name}<arg_key>", "glm45"),
        ("<|channel|>analysis", "openai"),
        ("{{ messages }}", None),
    ],
)
def test_tool_calls_are_told_from_the_template(template: str, name: str | None) -> None:
    form = tool_format("auto", template)
    assert (form.name if form else None) == name


def test_every_hint_tells_its_own_format_or_an_equal_one() -> None:
    for form in TOOL_FORMATS.values():
        told = tool_format("auto", " ".join(form.hints)) if form.hints else None
        assert not form.hints or (told is not None and len(told.hints) >= len(form.hints))


def test_reasoning() -> None:
    for template, name in (("<think>\n</think>", "qwen3"), ("[THINK]", "mistral"), ("<think></think><response>", "ernie45"), ("plain", None)):
        form = reasoning_format("auto", template)
        assert (form.name if form else None) == name


def test_named_and_off() -> None:
    assert tool_format("none", HERMES) is None
    named = tool_format("mistral", HERMES)
    assert named is not None and named.name == "mistral"
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        tool_format("hermess", "")
    own = ReasoningFormat("own", "<a>", "</a>", hints=("<a>",))
    assert reasoning_format("auto", "<a>", [own]) is own
