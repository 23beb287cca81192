"""How each family writes calls, from its documentation: the other side of llmx.answers, for tests. Nothing here uses the parsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Arguments = dict[str, Any]
CallList = Sequence[tuple[str, Arguments]]

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
    },
    "note": {"type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array"}, "extra": {"type": "object"}}},
    "ping": {"type": "object", "properties": {}},
}
CALLS: dict[str, CallList] = {
    "one": [("get_weather", {"city": "Zürich 🏔", "days": 3, "metric": True})],
    "two": [
        ("note", {"text": 'say "hi" {not} [a] call', "tags": ["a", "b c"], "extra": {"k": {"n": 1.5, "z": None}}}),
        ("get_weather", {"city": "Rome", "days": 1}),
    ],
    "empty": [("ping", {})],
}


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    """A string as it is, other values as JSON."""
    return value if isinstance(value, str) else dumps(value)


def each(render: Callable[[str, Arguments], str], between: str = "\n", before: str = "", after: str = "") -> Callable[[CallList], str]:
    return lambda calls: before + between.join(render(name, arguments) for name, arguments in calls) + after


def array(render: Callable[[str, Arguments], Any], before: str, after: str) -> Callable[[CallList], str]:
    return lambda calls: before + dumps([render(name, arguments) for name, arguments in calls]) + after


def usual(name: str, arguments: Arguments) -> Arguments:
    return {"name": name, "arguments": arguments}


def parameters(name: str, arguments: Arguments) -> Arguments:
    return {"name": name, "parameters": arguments}


def tagged(opener: str, closer: str, render: Callable[[str, Arguments], Any] = usual) -> Callable[[CallList], str]:
    return each(lambda name, arguments: opener + dumps(render(name, arguments)) + closer)


def qwen_xml(name: str, arguments: Arguments) -> str:
    inner = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"\n<function={name}>\n{inner}</function>\n"


def invoke(mark: str) -> Callable[[str, Arguments], str]:
    def render(name: str, arguments: Arguments) -> str:
        inner = "".join(f'<{mark}parameter name="{key}">{plain(value)}</{mark}parameter>\n' for key, value in arguments.items())
        return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>'

    return render


def dsml(name: str, arguments: Arguments) -> str:
    mark = "｜DSML｜"
    inner = "".join(
        f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">{plain(value)}</{mark}parameter>\n' for key, value in arguments.items()
    )
    return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>'


def pairs(name: str, arguments: Arguments, separator: str = "\n") -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{plain(value)}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}{separator}{inner}</tool_call>"


def python(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def braced(quote: str) -> Callable[[str, Arguments], str]:
    def value_of(value: Any) -> str:
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{value_of(item)}" for key, item in value.items()) + "}"
        return "[" + ",".join(map(value_of, value)) + "]" if isinstance(value, list) else dumps(value)

    return lambda name, arguments: f"call:{name}{value_of(arguments)}"


def minicpm(name: str, arguments: Arguments) -> str:
    return f'<function name="{name}">' + "".join(f'<param name="{key}">{plain(value)}</param>' for key, value in arguments.items()) + "</function>"


def step3(name: str, arguments: Arguments) -> str:
    inner = "".join(f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>' for key, value in arguments.items())
    return f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{inner}</steptml:invoke><｜tool_call_end｜>'


def harmony(name: str, arguments: Arguments) -> str:
    return f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}<|call|>"


def kimi(calls: CallList) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


_DEEPSEEK = {"before": "<｜tool▁calls▁begin｜>", "after": "<｜tool▁calls▁end｜>"}
_QWEN = each(lambda name, arguments: f"<tool_call>{qwen_xml(name, arguments)}</tool_call>")

WIRE: dict[str, Callable[[CallList], str]] = {
    **dict.fromkeys(("hermes", "qwen3_json", "granite4", "ernie45"), tagged("<tool_call>\n", "\n</tool_call>")),
    "longcat": tagged("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml", "step3p5", "mimo"), _QWEN),
    "seed_oss": each(lambda name, arguments: f"<seed:tool_call>{qwen_xml(name, arguments)}</seed:tool_call>"),
    "llama3_json": each(lambda name, arguments: dumps(parameters(name, arguments)), between="; "),
    "llama4_json": each(lambda name, arguments: dumps(parameters(name, arguments)), between="; ", before="<|python_tag|>"),
    "pythonic": each(python, between=", ", before="[", after="]"),
    "llama4_pythonic": each(python, between=", ", before="<|python_start|>[", after="]<|python_end|>"),
    "olmo3": each(python, before="<function_calls>", after="</function_calls>"),
    "lfm2": each(python, between=", ", before="<|tool_call_start|>[", after="]<|tool_call_end|>"),
    "mistral": each(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}", between=""),
    "deepseek_v3": each(
        lambda name, arguments: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜>", **_DEEPSEEK
    ),
    "deepseek_v31": each(lambda name, arguments: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}<｜tool▁call▁end｜>", between="", **_DEEPSEEK),
    "deepseek_v32": each(dsml, before="<｜DSML｜function_calls>\n", after="\n</｜DSML｜function_calls>"),
    "deepseek_v4": each(dsml, before="<｜DSML｜tool_calls>\n", after="\n</｜DSML｜tool_calls>"),
    "kimi_k2": kimi,
    **dict.fromkeys(("glm45", "glm47", "ling3", "poolside_v1"), each(pairs)),
    "hy_v3": each(lambda name, arguments: pairs(name, arguments, "<tool_sep>"), before="<tool_calls>", after="</tool_calls>"),
    "hy_v4": each(pairs, before="<tool_calls>", after="</tool_calls>"),
    **dict.fromkeys(("hunyuan_a13b", "jamba"), array(usual, "<tool_calls>", "</tool_calls>")),
    "minimax_m2": each(invoke(""), before="<minimax:tool_call>\n", after="\n</minimax:tool_call>"),
    "minicpm5": each(minicpm),
    "dots": each(invoke(""), before="<dots_function_call>\n", after="\n</dots_function_call>"),
    "granite": array(usual, "<|tool_call|>", ""),
    "granite-20b-fc": each(lambda name, arguments: f"<function_call> {dumps(usual(name, arguments))}"),
    "internlm": tagged("<|action_start|><|plugin|>\n", "<|action_end|>", parameters),
    "openai": each(harmony, between=""),
    "phi4_mini_json": array(usual, "functools", ""),
    "step3": each(step3, before="<｜tool_calls_begin｜>\n", after="\n<｜tool_calls_end｜>"),
    "inkling": tagged("<|content_invoke_tool_json|>", "<|end_message|>", lambda name, arguments: {"name": name, "args": arguments}),
    "xlam": array(usual, "", ""),
    "gigachat3": each(lambda name, arguments: f"function call<|role_sep|>\n{dumps(usual(name, arguments))}", between="<|message_sep|>\n\n"),
    "functiongemma": each(lambda name, arguments: f"<start_function_call>{braced('<escape>')(name, arguments)}<end_function_call>", between=""),
    "gemma4": each(lambda name, arguments: f"<|tool_call>{braced('<|' + chr(34) + '|>')(name, arguments)}<tool_call|>", between=""),
    "apertus": array(lambda name, arguments: {name: arguments}, "<|tools_prefix|>", "<|tools_suffix|>"),
    **dict.fromkeys(
        ("cohere_command3", "cohere_command4"),
        array(lambda name, arguments: {"tool_call_id": "0", "tool_name": name, "parameters": arguments}, "<|START_ACTION|>", "<|END_ACTION|>"),
    ),
}
NO_CONTENT_BEFORE = {"llama3_json", "pythonic", "llama4_pythonic", "xlam", "openai"}  # a call begins the answer; harmony has its own content messages
