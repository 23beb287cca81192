"""The ways in which model families write tool calls, by the names that users of other engines know.

A format says which marker opens calls and which class of sections reads them; `hints` are texts whose presence in a chat template tells the
family. A family that is missing here comes through the hook llmx_tool_parsers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from llmx.answers.bodies import braces, invokes, keys_and_values, python_calls, xml_parameters
from llmx.answers.calls import Calls, Parse
from llmx.answers.events import Event
from llmx.answers.json_call import JsonKeys
from llmx.answers.sections import JsonSection, NamedJsonSection, Section, TextSection
from llmx.record import record

__all__ = ["TOOL_FORMATS", "MakeSection", "ToolFormat"]


class MakeSection(Protocol):
    """Makes the section that a marker opens; `bare`: the marker is the first character of the call itself."""

    def __call__(self, opener: str, calls: Calls, bare: bool) -> Section: ...


@record
class ToolFormat:
    """How a family writes tool calls.

    opens: markers before a call. bare: texts that open one at the very beginning of an answer, and belong to it. noise: markers around calls
    and content that mean nothing to a reader. ids: how call ids look, "" = the server's own, "mistral" = nine letters and digits.
    """

    name: str
    family: str
    section: MakeSection | None  # None: read with its reasoning format, by a machine of its own (harmony)
    opens: Sequence[str] = ()
    bare: Sequence[str] = ()
    noise: Sequence[str] = ()
    hints: Sequence[str] = ()
    ids: str = ""
    closer: str = ""  # where a call is one {"name", "arguments"} object between the first opener and this


def _json(
    *closes: str, name: Sequence[str] = ("name",), arguments: Sequence[str] = ("arguments", "parameters"), skip: str = "", known_only: bool = False
) -> MakeSection:
    keys = JsonKeys(name, arguments)

    def make(opener: str, calls: Calls, bare: bool) -> Section:
        ends = closes if not bare else ()
        return JsonSection(opener, calls, keys=keys, closes=ends, skip=skip, known_only=known_only or bare, keep_opener=bare)

    return make


def _text(parse: Parse, *closes: str) -> MakeSection:
    def make(opener: str, calls: Calls, bare: bool) -> Section:
        return TextSection(opener, calls, closes=() if bare else closes, parse=parse, keep_opener=bare)

    return make


def _named(pattern: str, *closes: str, with_id: bool = False) -> MakeSection:
    """pattern: matches all that stands between the marker and the brace; groups name and, with_id, id."""
    compiled = re.compile(pattern, re.DOTALL)

    def name_of(head: str) -> tuple[str, str] | None:
        match = compiled.fullmatch(head)
        return (match["name"].strip(), match["id"].strip() if with_id else "") if match else None

    def make(opener: str, calls: Calls, bare: bool) -> Section:
        return NamedJsonSection(opener, calls, name_of=name_of, closes=closes)

    return make


class _Mistral:
    """Before version 11 an array of objects, since then NAME{arguments} or NAME[ARGS]{arguments}: told by the first character."""

    def __init__(self, opener: str, calls: Calls, bare: bool) -> None:
        self._opener, self._calls, self._held = opener, calls, ""
        self._section: Section | None = None

    def feed(self, text: str) -> tuple[list[Event], str | None]:
        """See Section."""
        if self._section is None:
            self._held += text
            text = self._held
            if not text.strip():
                return [], None
            make = _json() if text.lstrip()[0] in "[{" else _named(r"\s*(?P<name>[\w.\-]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*")
            self._section = make(self._opener, self._calls, False)
        return self._section.feed(text)

    def finish(self) -> list[Event]:
        """See Section."""
        return (self._section or _json()(self._opener + self._held, self._calls, False)).finish()


_QWEN_XML = xml_parameters(
    r"<function=(?P<name>[^>\n]+)>(?P<body>.*?)(?:</function>|\Z)", r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)(?:</parameter>|(?=<parameter=)|\Z)"
)
_MINICPM = xml_parameters(r'<function name="(?P<name>[^"]+)">(?P<body>.*?)\Z', r'<param name="(?P<key>[^"]+)">(?P<value>.*?)</param>')
_STEP3 = xml_parameters(
    r'.*?<steptml:invoke name="(?P<name>[^"]+)">(?P<body>.*?)</steptml:invoke>',
    r'<steptml:parameter name="(?P<key>[^"]+)">(?P<value>.*?)</steptml:parameter>',
)
_DSML = "｜DSML｜"
_DEEPSEEK_NOISE = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜end▁of▁sentence｜>")


def _minicpm(body: str, calls: Calls) -> Sequence[tuple[str, Mapping[str, object] | str]] | None:
    return _MINICPM('<function name="' + body, calls)


_HERMES = ToolFormat(
    "hermes", "Nous Hermes, Qwen 2.5 and 3", _json("</tool_call>"), ("<tool_call>",), hints=("<tool_call>", '"arguments"'), closer="</tool_call>"
)
_QWEN = ToolFormat("qwen3_coder", "Qwen3-Coder", _text(_QWEN_XML, "</tool_call>"), ("<tool_call>",), hints=("<tool_call>", "<function="))
_LLAMA = ToolFormat(
    "llama3_json", "Llama 3.x", _json(skip=";", known_only=True), ("<|python_tag|>",), ("{",), hints=("<|python_tag|>", '"parameters"')
)
_PYTHONIC = ToolFormat("pythonic", "Llama 3.2, ToolACE", _text(python_calls), bare=("[",))
_MISTRAL_HINTS = ("[TOOL_CALLS]", "[AVAILABLE_TOOLS]")
_DEEPSEEK = ToolFormat(
    "deepseek_v3", "DeepSeek V3, R1", _named(r"\s*(?:function)?<｜tool▁sep｜>(?P<name>[^\n<`]+?)\s*(?:```json)?\s*", "<｜tool▁call▁end｜>"),
    ("<｜tool▁call▁begin｜>",), noise=_DEEPSEEK_NOISE, hints=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"),
)  # fmt: skip
_V31 = _named(r"\s*(?P<name>[^\n<`]+?)\s*<｜tool▁sep｜>\s*", "<｜tool▁call▁end｜>")
_V32 = ToolFormat(
    "deepseek_v32", "DeepSeek V3.2", _text(invokes(_DSML), f"</{_DSML}function_calls>"), (f"<{_DSML}function_calls>",),
    hints=(f"{_DSML}function_calls",),
)  # fmt: skip
_GLM = ToolFormat("glm45", "GLM-4.5", _text(keys_and_values(), "</tool_call>"), ("<tool_call>",), hints=("<tool_call>", "<arg_key>"))
_COMMAND = ToolFormat(
    "cohere_command3", "Cohere Command", _json("<|END_ACTION|>", name=("tool_name",), arguments=("parameters",)), ("<|START_ACTION|>",),
    noise=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"), hints=("<|START_ACTION|>",),
)  # fmt: skip
_HUNYUAN = ToolFormat("hunyuan_a13b", "Hunyuan A13B", _json("</tool_calls>"), ("<tool_calls>",), hints=("<tool_calls>", "<answer>"))
_FORMATS = [
    _HERMES,
    replace(_HERMES, name="qwen3_json", family="Qwen3", hints=()),
    replace(_HERMES, name="granite4", family="Granite 4", hints=("<tool_call>", "<tools>", "granite")),
    replace(_HERMES, name="ernie45", family="ERNIE 4.5", noise=("<response>", "</response>"), hints=("<tool_call>", "<response>")),
    replace(
        _HERMES, name="longcat", family="LongCat", section=_json("</longcat_tool_call>"), opens=("<longcat_tool_call>",), hints=("longcat_tool_call",),
        closer="</longcat_tool_call>",
    ),
    _QWEN,
    replace(_QWEN, name="qwen3_xml", family="Qwen3.5", hints=()),
    replace(_QWEN, name="step3p5", family="Step-3.5", hints=()),
    replace(_QWEN, name="mimo", family="Xiaomi MiMo", hints=()),
    replace(
        _QWEN, name="seed_oss", family="ByteDance Seed", section=_text(_QWEN_XML, "</seed:tool_call>"), opens=("<seed:tool_call>",), hints=("<seed:tool_call>",)
    ),
    _LLAMA,
    replace(_LLAMA, name="llama4_json", family="Llama 4", hints=()),
    _PYTHONIC,
    replace(_PYTHONIC, name="llama4_pythonic", family="Llama 4", noise=("<|python_start|>", "<|python_end|>"), hints=("<|python_start|>",)),
    ToolFormat("olmo3", "OLMo 3", _text(python_calls, "</function_calls>"), ("<function_calls>",), hints=("<function_calls>",)),
    ToolFormat("lfm2", "Liquid LFM2", _text(python_calls, "<|tool_call_end|>"), ("<|tool_call_start|>",), hints=("<|tool_call_start|>",)),
    ToolFormat("mistral", "Mistral", _Mistral, ("[TOOL_CALLS]",), hints=_MISTRAL_HINTS, ids="mistral"),
    _DEEPSEEK,
    replace(_DEEPSEEK, name="deepseek_v31", family="DeepSeek V3.1", section=_V31, hints=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>")),
    _V32,
    replace(
        _V32, name="deepseek_v4", family="DeepSeek V4", section=_text(invokes(_DSML), f"</{_DSML}tool_calls>"), opens=(f"<{_DSML}tool_calls>",),
        hints=(f"{_DSML}tool_calls",),
    ),
    ToolFormat(
        "kimi_k2", "Kimi K2",
        _named(r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s:<]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*", "<|tool_call_end|>", with_id=True),
        ("<|tool_call_begin|>",), noise=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), hints=("<|tool_calls_section_begin|>",),
    ),
    _GLM,
    replace(_GLM, name="glm47", family="GLM-4.7", hints=()),
    replace(_GLM, name="ling3", family="Ling 3", hints=()),
    replace(_GLM, name="poolside_v1", family="Poolside", hints=()),
    replace(
        _GLM, name="hy_v3", family="Hunyuan V3", section=_text(keys_and_values(separator="<tool_sep>"), "</tool_call>"),
        noise=("<tool_calls>", "</tool_calls>"), hints=("<tool_sep>",),
    ),
    replace(_GLM, name="hy_v4", family="Hunyuan V4", noise=("<tool_calls>", "</tool_calls>"), hints=("<tool_calls>", "<arg_key>")),
    _HUNYUAN,
    replace(_HUNYUAN, name="jamba", family="Jamba", hints=("<tool_calls>",)),
    ToolFormat("minimax_m2", "MiniMax M2", _text(invokes(), "</minimax:tool_call>"), ("<minimax:tool_call>",), hints=("<minimax:tool_call>",)),
    ToolFormat("minicpm5", "MiniCPM5", _text(_minicpm, "</function>"), ('<function name="',), hints=('<function name="',)),
    ToolFormat(
        "dots", "dots.llm", _text(invokes(), "</dots_function_call>"), ("<dots_function_call>",), hints=("<dots_function_call>",)
    ),
    ToolFormat("granite", "Granite 3", _json(), ("<|tool_call|>", "<tool_call>"), noise=("</tool_call>",), hints=("<|tool_call|>", "granite")),
    ToolFormat("granite-20b-fc", "Granite 20B FC", _json(), ("<function_call>",), hints=("<function_call>",)),
    ToolFormat("internlm", "InternLM2", _json("<|action_end|>"), ("<|action_start|><|plugin|>",), hints=("<|action_start|>",)),
    ToolFormat("openai", "gpt-oss", None, hints=("<|channel|>",)),
    ToolFormat("phi4_mini_json", "Phi-4 mini", _json(), ("functools",), hints=("functools",)),
    ToolFormat(
        "step3", "Step-3", _text(_STEP3, "<｜tool_call_end｜>"), ("<｜tool_call_begin｜>",),
        noise=("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"), hints=("steptml:invoke",),
    ),
    ToolFormat("inkling", "Inkling", _json("<|end_message|>", arguments=("args",)), ("<|content_invoke_tool_json|>",), hints=("<|content_invoke_tool_json|>",)),
    ToolFormat("xlam", "Salesforce xLAM", _json("```"), ("```json",), ("[", "{"), noise=("[TOOL_CALLS]",)),
    ToolFormat("gigachat3", "GigaChat 3", _json(), ("function call<|role_sep|>", "<|function_call|>"), noise=("<|message_sep|>",), hints=("function call",)),
    ToolFormat(
        "functiongemma", "FunctionGemma", _text(braces("<escape>"), "<end_function_call>"), ("<start_function_call>",), hints=("<start_function_call>",)
    ),
    ToolFormat("gemma4", "Gemma 4", _text(braces('<|"|>'), "<tool_call|>"), ("<|tool_call>",), hints=("<|tool_call>",)),
    ToolFormat("apertus", "Apertus", _json("<|tools_suffix|>", name=()), ("<|tools_prefix|>",), hints=("<|tools_prefix|>",)),
    _COMMAND,
    replace(_COMMAND, name="cohere_command4", hints=()),
]  # fmt: skip

TOOL_FORMATS: Mapping[str, ToolFormat] = {form.name: form for form in _FORMATS}
