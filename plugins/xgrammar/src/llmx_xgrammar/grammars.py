"""What of a GrammarSpec XGrammar enforces, and how it is told."""

from __future__ import annotations

import json
import re
from typing import Any

from llmx.errors import GrammarError
from llmx.structured import WHITESPACE, GrammarSpec, subschemas, unsupported_keyword

__all__ = ["KEYWORDS", "check_regex", "check_schema", "choices_ebnf", "refusal", "structural_tag", "whitespace_limit"]

# XGrammar passes over keywords that it does not know, and over some combinations, and lets control characters into strings of bounded
# length: only what the tests show to be enforced stands here.
KEYWORDS = frozenset("type const enum anyOf $ref items prefixItems minItems maxItems properties required additionalProperties".split())
_MAX_SPACES = 8
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?|[\^$]", re.DOTALL)


def refusal(spec: GrammarSpec) -> str | None:
    """Why XGrammar cannot honour a spec, as far as can be seen without importing it, and torch with it; None: it may."""
    try:
        if spec.kind == "json":
            check_schema(json.loads(spec.text))
            whitespace_limit(spec.whitespace)
        elif spec.kind == "regex":
            check_regex(spec.text)
        elif spec.kind == "structural_tag":
            structural_tag(spec.text)
        elif spec.kind == "grammar" and "::=" not in spec.text:
            return "the grammar is not in EBNF with ::="
    except GrammarError as error:
        return str(error)
    return None


def check_schema(schema: Any) -> None:
    """Raise GrammarError for what XGrammar would pass over."""
    wrong = unsupported_keyword(schema, KEYWORDS)
    if wrong is not None:
        raise GrammarError(f"{wrong[1]}: keyword {wrong[0]!r} cannot be enforced")
    todo = [("#", schema)]
    while todo:
        pointer, value = todo.pop()
        if isinstance(value, dict):
            beside = {"$ref", "anyOf", "const", "enum"} & set(value)
            others = set(value) - {"$defs", "definitions"}
            if beside and len(others) > 1:
                raise GrammarError(f"{pointer}: {sorted(beside)[0]} beside other keywords cannot be enforced")
            unlisted = [name for name in value.get("required", ()) if name not in value.get("properties", ())]
            if unlisted:
                raise GrammarError(f"{pointer}/required has {unlisted[0][:40]!r}, which properties does not list: this cannot be enforced")
            if others and not beside and not isinstance(value.get("type"), str):
                raise GrammarError(f"{pointer}: a schema without one type cannot be enforced")
            todo += [(inside, one) for inside, _, one in subschemas(value, pointer)]


def whitespace_limit(pattern: str) -> int | None:
    """Characters between JSON tokens at most; None for none at all. Raises GrammarError for a pattern of the user's own."""
    if pattern not in ("", WHITESPACE):
        raise GrammarError("whitespace_pattern cannot be enforced")
    return _MAX_SPACES if pattern else None


def check_regex(pattern: str) -> None:
    """Raise GrammarError for what XGrammar passes over (anchors inside, groups with a question mark), or cannot read."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(f"regex: {error}") from error
    for found in _PARTS.finditer(pattern):
        at, part = found.start(), found[0]
        inside = (part == "$" and at + 1 < len(pattern)) or (part == "^" and at > 0)
        if inside or (part[0] == "\\" and part[1] in "123456789") or (part == "(?" and pattern[at + 2 : at + 3] != ":"):
            raise GrammarError(f"regex: at character {at + 1}: {pattern[at : at + 3]!r} cannot be enforced")


def choices_ebnf(text: str) -> str:
    """EBNF of a JSON list of strings."""
    return "root ::= " + " | ".join(json.dumps(one, ensure_ascii=True) for one in json.loads(text))


def structural_tag(text: str) -> str:
    """XGrammar's form of a normal structural tag."""
    normal = json.loads(text)
    tags = [_tag(tag) for tag in normal["tags"]]
    if not normal["triggers"]:
        return json.dumps({"type": "structural_tag", "format": tags[0]})
    switches = {name: normal[name] for name in ("at_least_one", "stop_after_first")}
    return json.dumps({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": normal["triggers"], "tags": tags, **switches}})


def _tag(tag: dict[str, Any]) -> dict[str, Any]:
    kind, value = tag["content"], tag["value"]
    if kind == "json_schema":
        check_schema(value)
    if kind == "regex":
        check_regex(value)
    key = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar", "any_text": None}[kind]
    return {"type": "tag", "begin": tag["begin"], "content": {"type": kind, **({key: value} if key else {})}, "end": tag["end"]}
