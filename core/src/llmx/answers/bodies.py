"""Bodies of tool calls that are not JSON: XML-like parameters, keys and values, Python calls, Gemma's braces.

Each function reads the whole body of a section and gives its calls, or None when it is no call. Values are typed by the schema of
the tool: a string stays as it was written, the rest is read as JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from llmx.answers.calls import Calls, Parse, ParsedCall

__all__ = ["braces", "invokes", "keys_and_values", "python_calls", "typed", "xml_parameters"]


def typed(text: str, schema: Mapping[str, Any] | None, *, guess: bool = False) -> Any:
    """A value as its schema types it. guess: without a schema, what reads as JSON other than a string is taken so."""
    kinds = (schema or {}).get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if kinds == ["string"] or (not kinds and not guess and not _has_alternatives(schema)):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        words = {"True": True, "False": False, "None": None}
        return words.get(text.strip(), text)
    return text if isinstance(value, str) and "string" in kinds else value


def _has_alternatives(schema: Mapping[str, Any] | None) -> bool:
    return bool(schema) and any(key in (schema or {}) for key in ("anyOf", "oneOf", "allOf", "enum", "$ref", "const"))


def _property(calls: Calls, name: str, key: str) -> Mapping[str, Any] | None:
    schema = calls.tools.get(name, {}).get("properties", {}).get(key)
    return schema if isinstance(schema, Mapping) else None


def xml_parameters(call: str, parameter: str, *, strip: str = "\n", guess: bool = False) -> Parse:
    """`call` finds groups name and body, `parameter` in it key and value (and string: "true" or "false", which then types the value)."""
    calls_of, parameters_of = re.compile(call, re.DOTALL), re.compile(parameter, re.DOTALL)

    def parse(body: str, calls: Calls) -> list[ParsedCall] | None:
        found: list[ParsedCall] = []
        for match in calls_of.finditer(body):
            name, arguments = match["name"].strip(), {}
            for part in parameters_of.finditer(match["body"]):
                value = part["value"]
                for char in strip:
                    value = value.removeprefix(char).removesuffix(char)
                flag = part.groupdict().get("string")
                key = part["key"].strip()
                if flag is not None:
                    arguments[key] = value if flag == "true" else typed(value, None, guess=True)
                else:
                    arguments[key] = typed(value, _property(calls, name, key), guess=guess)
            found.append((name, arguments))
        return found or None

    return parse


def invokes(prefix: str = "") -> Parse:
    """<invoke name="f"><parameter name="k">v</parameter></invoke>, the tag names behind a prefix."""
    mark = re.escape(prefix)
    return xml_parameters(
        rf'<{mark}invoke name="(?P<name>[^"]+)">(?P<body>.*?)</{mark}invoke>',
        rf'<{mark}parameter name="(?P<key>[^"]+)"(?: string="(?P<string>true|false)")?>(?P<value>.*?)</{mark}parameter>',
    )


def keys_and_values(*, separator: str = "") -> Parse:
    """NAME, then <arg_key>k</arg_key><arg_value>v</arg_value> pairs. separator: a tag behind the name."""
    pairs = re.compile(r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)

    def parse(body: str, calls: Calls) -> list[ParsedCall] | None:
        head = body.split("<arg_key>", 1)[0]
        name = (head.split(separator, 1)[0] if separator else head).strip()
        if not name or "<" in name:
            return None
        values = {pair["key"].strip(): pair["value"] for pair in pairs.finditer(body)}
        return [(name, {key: typed(value, _property(calls, name, key), guess=True) for key, value in values.items()})]

    return parse


def python_calls(body: str, calls: Calls) -> list[ParsedCall] | None:
    """Python calls with literal keyword arguments: a list of them, or one per line. JSON's true, false and null are read too."""
    text = body.strip()
    sources = [text] if text.startswith("[") else [line for line in text.splitlines() if line.strip()]
    found: list[ParsedCall] = []
    for source in sources:
        try:
            tree = ast.parse(source.strip(), mode="eval").body
            nodes = tree.elts if isinstance(tree, ast.List) else [tree]
            for node in nodes:
                if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
                    return None
                found.append((ast.unparse(node.func), {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return found or None


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {str(_literal(key)) if key else "": _literal(value) for key, value in zip(keys, values, strict=True)}
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"{type(value).__name__} is no argument")
    return value


def braces(quote: str) -> Parse:
    """call:NAME{key:value,...}; strings stand between two quote marks, objects and arrays nest."""

    def parse(body: str, calls: Calls) -> list[ParsedCall] | None:
        text = body.strip()
        if not text.startswith("call:") or "{" not in text:
            return None
        name, _, rest = text.removeprefix("call:").partition("{")
        try:
            arguments, end = _brace_object(rest, 0, quote)
        except (IndexError, ValueError):
            return None
        return [(name.strip(), arguments)] if not rest[end:].strip() else None

    return parse


def _brace_object(text: str, at: int, quote: str) -> tuple[dict[str, Any], int]:
    """Reads from behind the opening brace; gives the object and the index behind the closing one."""
    found: dict[str, Any] = {}
    while True:
        while text[at] in " \n,":
            at += 1
        if text[at] == "}":
            return found, at + 1
        colon = text.index(":", at)
        key = text[at:colon].strip()
        found[key.removeprefix(quote).removesuffix(quote)], at = _brace_value(text, colon + 1, quote)


def _brace_value(text: str, at: int, quote: str) -> tuple[Any, int]:
    while text[at] in " \n":
        at += 1
    if text.startswith(quote, at):
        end = text.index(quote, at + len(quote))
        return text[at + len(quote) : end], end + len(quote)
    if text[at] == "{":
        return _brace_object(text, at + 1, quote)
    if text[at] == "[":
        items: list[Any] = []
        at += 1
        while True:
            while text[at] in " \n,":
                at += 1
            if text[at] == "]":
                return items, at + 1
            item, at = _brace_value(text, at, quote)
            items.append(item)
    end = at
    while text[end] not in ",]}":
        end += 1
    return json.loads(text[at:end].strip()), end
