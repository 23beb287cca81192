"""JSON schemas before a backend sees them: every keyword known, every value well-formed, annotations left out.

Schemas are read as draft 2020-12. Errors name the keyword and its place (a JSON pointer). Nothing recursive: depth is the user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from llmx.errors import GrammarError
from llmx.structured_params import MAX_NESTING

__all__ = ["ANNOTATIONS", "ASSERTIONS", "TYPES", "cleaned", "join", "subschemas", "unsupported_keyword"]

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

_Check = Callable[[Any], str | None]


def _whole(value: Any) -> str | None:
    fits = not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) and value >= 0
    return None if fits else "must be a whole number from 0"


def _number(value: Any) -> str | None:
    return None if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else "must be a number"


def _positive(value: Any) -> str | None:
    return _number(value) or (None if value > 0 else "must be larger than 0")


def _string(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _names(value: Any) -> str | None:
    return None if isinstance(value, list) and all(isinstance(one, str) for one in value) else "must be a list of strings"


def _types(value: Any) -> str | None:
    given = value if isinstance(value, list) else [value]
    wrong = next((one for one in given if one not in TYPES), None)
    if wrong is not None or not given:
        return f"holds {str(wrong)[:40]!r}: a type is one of {', '.join(TYPES)}" if given else "is empty: name at least one type"
    return None


def _values(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list"
    return None if value else "is empty: nothing could be written"


def _name_lists(value: Any) -> str | None:
    return None if isinstance(value, dict) and all(_names(one) is None for one in value.values()) else "must map names to lists of strings"


def _anything(value: Any) -> str | None:
    return None


# keyword -> what is wrong with its value; those that hold schemas are below
ASSERTIONS: Mapping[str, _Check] = {
    "type": _types, "const": _anything, "enum": _values,
    "minLength": _whole, "maxLength": _whole, "pattern": _string, "format": _string,
    "minimum": _number, "maximum": _number, "exclusiveMinimum": _number, "exclusiveMaximum": _number, "multipleOf": _positive,
    "minItems": _whole, "maxItems": _whole, "uniqueItems": _boolean, "minContains": _whole, "maxContains": _whole,
    "required": _names, "minProperties": _whole, "maxProperties": _whole, "dependentRequired": _name_lists,
    "$ref": _string, "$dynamicRef": _string,
}  # fmt: skip
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
ANNOTATIONS = frozenset(
    "$schema $id $comment $anchor $vocabulary title description default examples deprecated readOnly writeOnly contentMediaType contentEncoding contentSchema "
    "discriminator".split()
)
_WITHOUT_EFFECT: tuple[tuple[str, Any], ...] = (("uniqueItems", False), ("unevaluatedProperties", True), ("unevaluatedItems", True), ("nullable", False))
_REMEDY = {
    "nullable": 'write "type": ["string", "null"] instead',
    "additionalItems": "use prefixItems and items",
    "dependencies": "use dependentRequired",
    "id": "use $id",
    "example": "use examples",
}


def join(pointer: str, *parts: str | int) -> str:
    """A JSON pointer below another."""
    return pointer + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def subschemas(schema: Mapping[str, Any], pointer: str = "#") -> Iterator[tuple[str, str, Any]]:
    """(pointer, keyword, schema) of every schema directly inside one. A keyword of the wrong shape gives nothing."""
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield join(pointer, keyword), keyword, value
        elif keyword in _LISTS and isinstance(value, list):
            yield from ((join(pointer, keyword, index), keyword, one) for index, one in enumerate(value))
        elif keyword in _MAPS and isinstance(value, dict):
            yield from ((join(pointer, keyword, name), keyword, one) for name, one in value.items())


def cleaned(schema: Any) -> Any:
    """The schema without annotations, checked. Raises GrammarError for an unknown keyword, a malformed value or too much depth."""
    root: list[Any] = [None]
    todo: list[tuple[Any, str, int, Any, Any]] = [(schema, "#", 1, root, 0)]  # schema, where, level, container and key for the copy
    while todo:
        value, pointer, level, into, key = todo.pop()
        if isinstance(value, bool):
            into[key] = value
            continue
        if not isinstance(value, dict):
            raise GrammarError(f"{pointer} is {str(value)[:40]!r}: a schema must be an object, true or false")
        if level > MAX_NESTING:
            raise GrammarError(f"{pointer[:60]}... is nested deeper than {MAX_NESTING} levels: flatten the schema, or use $defs and $ref")
        into[key] = copy = _keywords(value, pointer)
        for inside, keyword, one in subschemas(copy, pointer):
            holder, name = (copy, keyword) if keyword in _ONE else (copy[keyword], _last(inside, keyword))
            todo.append((one, inside, level + 1, holder, name))
    return root[0]


def _last(pointer: str, keyword: str) -> Any:
    part = pointer.rpartition("/")[2]
    return int(part) if keyword in _LISTS else part.replace("~1", "/").replace("~0", "~")


def _keywords(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """A copy of one level without annotations; containers of schemas are copies too."""
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            if keyword == "$id" and pointer != "#":
                raise GrammarError(f"{join(pointer, keyword)}: a schema inside another may not have an $id: leave it out")
            continue
        if any(keyword == name and value is idle for name, idle in _WITHOUT_EFFECT):
            continue
        if keyword in ASSERTIONS:
            wrong = ASSERTIONS[keyword](value)
        elif keyword in _ONE:
            wrong = "must be a schema (a list of schemas is prefixItems)" if isinstance(value, list) else None
        elif keyword in _LISTS:
            wrong = None if isinstance(value, list) and value else "must be a list of one or more schemas"
        elif keyword in _MAPS:
            wrong = None if isinstance(value, dict) else "must map names to schemas"
        else:
            remedy = _REMEDY.get(keyword, "leave it out, or rename it to begin with x-")
            raise GrammarError(f"{join(pointer, keyword)}: keyword {keyword[:60]!r} is not known: {remedy}")
        if wrong is not None:
            raise GrammarError(f"{join(pointer, keyword)} {wrong}")
        kept[keyword] = list(value) if keyword in _LISTS else dict(value) if keyword in _MAPS else value
    return kept


def unsupported_keyword(schema: Any, supported: Collection[str]) -> tuple[str, str] | None:
    """(keyword, pointer) of the first keyword in a cleaned schema that is not among `supported`; None when all are."""
    todo = [("#", schema)]
    while todo:
        pointer, value = todo.pop()
        if isinstance(value, dict):
            wrong = next((keyword for keyword in value if keyword not in supported and keyword not in ("$defs", "definitions")), None)
            if wrong is not None:
                return wrong, join(pointer, wrong)
            todo += [(inside, one) for inside, _, one in subschemas(value, pointer)]
    return None
