"""Tool calls of every family, whole and cut anywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from llmx.answers.events import Answer, joined
from llmx.answers.parser import answer_parser
from llmx.answers.reasoning_formats import REASONING_FORMATS
from llmx.answers.tool_formats import TOOL_FORMATS
from tests.answers.wire import CALLS, NO_CONTENT_BEFORE, TOOLS, WIRE

CUTS = 200


def parse(name: str, pieces: list[str], reasoning: str | None = None, prompt: str = "") -> Answer:
    form = REASONING_FORMATS[reasoning] if reasoning else None
    parser = answer_parser(form, TOOL_FORMATS[name], TOOLS, prompt)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return joined([*events, *parser.finish()])


def cut(text: str, seed: int) -> list[str]:
    """text in random pieces: from single characters to a few long ones."""
    rng = random.Random(seed)
    share = rng.choice((1.0, 0.5, 0.1, 0.02))
    places = [0, *(i for i in range(1, len(text)) if rng.random() < share), len(text)]
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def test_every_format_has_a_wire_form() -> None:
    assert set(WIRE) == set(TOOL_FORMATS) and len(TOOL_FORMATS) >= 45


@pytest.mark.parametrize("scenario", CALLS)
@pytest.mark.parametrize("name", WIRE)
def test_calls_come_out_however_the_text_is_cut(name: str, scenario: str) -> None:
    calls = CALLS[scenario]
    before = "" if name in NO_CONTENT_BEFORE else "Let me look.\n\n" if scenario == "two" else ""
    text = before + WIRE[name](calls)
    whole = parse(name, [text])
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == [(n, dict(a)) for n, a in calls]
    assert whole.content == before.rstrip() and not whole.reasoning
    for seed in range(CUTS):
        assert parse(name, cut(text, seed)) == whole, f"seed {seed}"


@pytest.mark.parametrize("name", WIRE)
def test_text_without_a_call_stays_as_it_is(name: str) -> None:
    text = "A list: 1 < 2, {x} and [y]; `code`\n\n<b>done</b> \n"
    for seed in range(20):
        assert parse(name, cut(text, seed)) == Answer(text)


@pytest.mark.parametrize("name", WIRE)
def test_an_answer_cut_off_anywhere_is_the_same_streamed_and_whole(name: str) -> None:
    """B024: stopped by length inside a call: no half of the wire format is in the stream that is not in the whole answer."""
    text = WIRE[name](CALLS["two"])
    for end in range(0, len(text), 7):
        whole = parse(name, [text[:end]])
        assert parse(name, list(text[:end])) == whole == parse(name, cut(text[:end], end))
        assert len(whole.calls) <= 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>\nnot json {at} all\n</tool_call>"),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("glm45", "<tool_call></tool_call>"),
        ("pythonic", "[f(1), 2]"),
        ("pythonic", "[__import__('os').system(1 + x)]"),
        ("llama3_json", '{"name": "unknown_tool", "parameters": {}}'),
        ("llama3_json", '{"answer": 42}'),
        ("xlam", '[{"a": 1}]'),
        ("qwen3_coder", "<tool_call>function</tool_call>"),
        ("gemma4", "<|tool_call>call:f{k:}<tool_call|>"),
        ("phi4_mini_json", "functools is a module of Python"),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    whole = parse(name, [text])
    assert whole == Answer(text)
    for seed in range(40):
        assert parse(name, cut(text, seed)) == whole


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather"}</tool_call>', '{"city": "Rome"}'),
        ('<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>', '{"city": "Rome"}'),
        ('<tool_call>{"name": "get_weather", "arguments": null}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather"}</tool_call>', "{}"),
        ('<tool_call>{"name": "get_weather", "arguments": {"a": "</tool_call>"}}</tool_call>', '{"a": "</tool_call>"}'),
        ('<tool_call>{"name": "get_weather", "id": 7, "arguments": {"n": [1, {}]}, "x": [1, "}"]}</tool_call>', '{"n": [1, {}]}'),
    ],
)
def test_call_objects_in_any_order(text: str, arguments: str) -> None:
    for pieces in ([text], list(text)):
        answer = parse("hermes", pieces)
        assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", arguments)] and not answer.content


def test_arguments_go_out_while_they_are_written() -> None:
    parser = answer_parser(None, TOOL_FORMATS["hermes"], TOOLS)
    events = parser.feed('<tool_call>{"name": "note", "arguments": {"text": "a lo')
    assert joined(events).calls[0].arguments == '{"text": "a lo'


def test_mistral_before_version_11() -> None:
    text = '[TOOL_CALLS] [{"name": "ping", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Rome"}}]'
    for pieces in ([text], list(text)):
        assert [(call.name, call.arguments) for call in parse("mistral", pieces).calls] == [("ping", "{}"), ("get_weather", '{"city": "Rome"}')]


def test_the_models_own_call_ids_are_kept() -> None:
    assert [call.id for call in parse("kimi_k2", [WIRE["kimi_k2"](CALLS["two"])]).calls] == ["functions.note:0", "functions.get_weather:1"]


def test_values_are_typed_by_the_schema_of_the_tool() -> None:
    text = WIRE["qwen3_coder"]([("get_weather", {"city": "007", "days": 3, "metric": True})])
    assert json.loads(parse("qwen3_coder", [text]).calls[0].arguments) == {"city": "007", "days": 3, "metric": True}


def test_without_tools_calls_are_text() -> None:
    text = WIRE["hermes"](CALLS["one"])
    parser = answer_parser(None, TOOL_FORMATS["hermes"], None)
    assert joined([*parser.feed(text), *parser.finish()]) == Answer(text)


def test_the_page_of_formats(request: pytest.FixtureRequest) -> None:
    """docs/tool-calling.md lists every format, and which were checked against what."""
    page = Path(__file__).parents[2] / "docs" / "tool-calling.md"
    tools = "".join(f"| `{form.name}` | {form.family} | {CUTS} cuts of 3 transcripts, from documentation |\n" for form in TOOL_FORMATS.values())
    thoughts = "".join(
        f"| `{form.name}` | {f'`{form.start}` … `{form.end}`' if form.end else 'channel `analysis`'} |\n" for form in REASONING_FORMATS.values()
    )
    text = HEAD + TOOLS_HEAD + tools + REASONING_HEAD + thoughts
    if request.config.getoption("--write-docs"):
        page.write_text(text)
    assert page.read_text() == text, "run pytest tests/answers --write-docs"


HEAD = """# Tool calls and reasoning

Written by `tests/answers`. A model writes its calls and thoughts as text, each family in its own way. llmx takes them apart while the
text streams; however it is cut, the result is the same. What turns out to be no call is given as content, so nothing is lost.

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
weather = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of the next days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
answer = client.chat.completions.create(
    model="smollm2-135m-instruct",
    messages=[{"role": "user", "content": "What will the weather be in Rome for the next 3 days?"}],
    tools=[weather],
    tool_choice="required",
    parallel_tool_calls=False,
    temperature=0,
    max_tokens=100,
)
print(answer.choices[0].message.tool_calls[0].function)
```

| `tool_choice` | what happens |
|---|---|
| `auto` (default) | the model decides; calls are read in its own format. A tool with `strict` is held to its schema where calls are JSON between two markers |
| `required` | a grammar forces one or more calls that follow the tools' schemas; `parallel_tool_calls: false` makes it exactly one |
| a function's name | a grammar forces the arguments of that function; the answer ends with `stop`, as OpenAI's does |
| `none` | the tools are not shown to the model, and its text is not searched for calls |

Reasoning comes apart from the content, as `reasoning` and, the same, as `reasoning_content`; `include_reasoning: false` leaves it out. A form forced by a
grammar (`response_format`, `tool_choice` required or a name, strict tools) holds behind the reasoning:
[structured output](structured-output.md#reasoning-first). Where the format is known, `usage` tells the tokens between the markers:
`completion_tokens_details.reasoning_tokens` (`output_tokens_details` on `/v1/responses`).

`thinking_token_budget: N` limits them: after N tokens the end marker is written for the model, token by token, and the answer goes on behind it.
0 ends reasoning where it begins, -1 is no limit. The same is `thinking: {"type": "enabled", "budget_tokens": N}` on `/v1/messages` (there with a
`Warning` where it cannot be done, elsewhere 400), and `SamplingParams(thinking_token_budget=N)` offline. It holds for each of `n` answers, with and
without a form behind it, and works for every format below that has an end marker; gpt-oss (`openai_gptoss`) has none. Tokens are drawn as
always before it, so a seeded answer is the same up to there. Drafts change nothing about it.

The formats are told from the model's chat template; `--tool-call-parser NAME` and `--reasoning-parser NAME` choose one, `none` turns it
off. For a template that knows no tools they are described in the system message, calls are asked for and read in the format `hermes`,
and earlier calls and their results are written out as text.
"""
TOOLS_HEAD = """
## Tool calls

| name | family | checked |
|---|---|---|
"""
REASONING_HEAD = """
## Reasoning

| name | markers |
|---|---|
"""
