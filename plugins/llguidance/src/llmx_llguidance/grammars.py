"""From a GrammarSpec to the text that llguidance compiles: always Lark, always without forced tokens.

Forcing would make llguidance call back into Python to tokenize what it forces, and a grammar that forces a million characters
would hold everybody up.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from llmx.errors import GrammarError
from llmx.structured import GrammarSpec, subschemas, unsupported_keyword
from llmx_llguidance.formats import with_own_formats

__all__ = ["KEYWORDS", "lark_of"]

_MAX_OPTIONAL = 480  # properties of one object that are not required; four parser items each, of 2,000
_HEAD = '%llguidance {"no_forcing": true}\n'
KEYWORDS = frozenset(
    "type const enum anyOf oneOf allOf $ref items prefixItems minItems maxItems properties required additionalProperties patternProperties minProperties "
    "maxProperties minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split()
)
# an escape, a class, or a quantifier (lazy ones have the same language) with what may wrongly follow it
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?:[*+?]|\{\d+(?:,\d*)?\})\??(?P<twice>[*+?]|\{\d+(?:,\d*)?\})?", re.DOTALL)
_RULE_GBNF = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
_RESERVED = re.compile(r"^\s*(?:[\w-]+\[[^\]\n]*\b(max_tokens|temperature|stop|stop_capture)\s*=|%llguidance)", re.MULTILINE)


def lark_of(spec: GrammarSpec) -> str:
    """The Lark text of a grammar. Raises GrammarError for what this backend does not enforce."""
    match spec.kind:
        case "json":
            return _HEAD + "start: " + _json(json.loads(spec.text), spec.whitespace)
        case "regex":
            return _HEAD + "start: " + _regex(spec.text)
        case "choice":
            return _HEAD + "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in json.loads(spec.text))
        case "grammar":
            return _HEAD + _grammar(spec.text)
        case _:
            return _HEAD + _tags(json.loads(spec.text), spec.whitespace)


def _json(schema: Any, whitespace: str) -> str:
    wrong = unsupported_keyword(schema, KEYWORDS)
    if wrong is not None:
        raise GrammarError(f"{wrong[1]}: keyword {wrong[0]!r} cannot be enforced: leave it out, or check the answer yourself")
    _check_counts(schema)
    schema = with_own_formats(schema)
    options: dict[str, Any] = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    body = {"x-guidance": options, **schema} if isinstance(schema, dict) else {"x-guidance": options}
    return "%json " + json.dumps(body, ensure_ascii=False)


def _check_counts(schema: Any) -> None:
    """What llguidance cannot count, or not in time.

    It may write a name that `properties` does not list twice, so it can count on one such property only. Where every one of many
    properties may come next, a mask would take tens of milliseconds, and then meet a limit of its parser.
    """
    todo = [("#", schema)]
    while todo:
        pointer, value = todo.pop()
        if isinstance(value, dict):
            least, sure = value.get("minProperties", 0), len(set(value.get("required", ())))
            if least - sure > 1:
                why = f"is {least}, but only {sure} properties are required: at most {sure + 1} can be enforced; name more in required"
                raise GrammarError(f"{pointer}/minProperties {why}")
            optional = len(set(value.get("properties", ())) - set(value.get("required", ())))
            if optional > _MAX_OPTIONAL:
                why = f"has {optional} properties that are not required: at most {_MAX_OPTIONAL} can be enforced; require some, or nest them"
                raise GrammarError(f"{pointer}/properties {why}")
            todo += [(inside, one) for inside, _, one in subschemas(value, pointer)]


def _regex(pattern: str) -> str:
    """One terminal. `/` ends it in Lark, and a newline may not stand in it. Raises GrammarError for a quantifier behind a quantifier."""
    for found in _ATOM.finditer(pattern):
        if found["twice"]:
            where = f"at character {found.start('twice') + 1}: {found['twice']!r}"
            raise GrammarError(f"regex: {where} repeats what is repeated already: write a group around the first part")
    text = re.sub(r"(\\.)|/", lambda found: found[1] or "\\/", pattern, flags=re.DOTALL)
    return "/" + text.replace("\n", "\\n") + "/"


def _grammar(text: str) -> str:
    if _RULE_GBNF.search(text):
        try:
            return gbnf_to_lark(text)
        except Exception as error:  # the converter raises plain exceptions of several kinds
            raise GrammarError(f"the grammar cannot be read as GBNF: {error}") from error
    found = _RESERVED.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        raise GrammarError(f"grammar: line {line}: {found[1] or '%llguidance'} is not allowed here: leave it out")
    return text


def _tags(normal: dict[str, Any], whitespace: str) -> str:
    """Free text until a trigger, then one of its tags; and again."""
    lines: list[str] = []
    if not normal["triggers"]:
        tag = normal["tags"][0]
        return "start: " + _quoted(tag["begin"]) + _content(tag, whitespace, "only", lines) + _quoted(tag["end"]) + "\n" + "\n".join(lines)
    parts = []
    for index, trigger in enumerate(normal["triggers"]):
        bodies = [tag for tag in normal["tags"] if tag["begin"].startswith(trigger)]
        choices = []
        for number, tag in enumerate(bodies):
            name = f"t{index}_{number}"
            lines.append(f"{name}: {_quoted(tag['begin'][len(trigger) :])}{_content(tag, whitespace, name, lines)}{_quoted(tag['end'])}")
            choices.append(name)
        lines.append(f"head{index}[lazy]: TEXT {json.dumps(trigger, ensure_ascii=False)}")
        lines.append(f"tag{index}: head{index} ({' | '.join(choices)})")
        parts.append(f"tag{index}")
    one = f"({' | '.join(parts)})"
    times = "" if normal["stop_after_first"] and normal["at_least_one"] else "?" if normal["stop_after_first"] else "+" if normal["at_least_one"] else "*"
    start = f"start: {one} | tail" if times == "?" else f"start: {one}{times}" + ("" if normal["stop_after_first"] else " tail")
    return "\n".join([start, "tail: TEXT", "TEXT: /(.|\\n)*/", *lines])


def _content(tag: dict[str, Any], whitespace: str, name: str, lines: list[str]) -> str:
    match tag["content"]:
        case "json_schema":
            return _json(tag["value"], whitespace) + " "
        case "regex":
            return _regex(tag["value"]) + " "
        case "any_text":
            if not tag["end"]:
                raise GrammarError("structural_tag: any_text needs an end that is not empty")
            lines.append(f"{name}_any[lazy]: /(.|\\n)*/ {json.dumps(tag['end'], ensure_ascii=False)}")
            tag["end"] = ""
            return f"{name}_any "
        case _:
            raise GrammarError("structural_tag: content of type grammar is not supported here: use json_schema or regex")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) + " " if text else ""
