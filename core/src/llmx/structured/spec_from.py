"""From what a request asks for to a GrammarSpec: everything is checked here that needs no backend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmx.errors import GrammarError
from llmx.structured.grammar import WHITESPACE, GrammarSpec
from llmx.structured.references import check_references
from llmx.structured.schema import cleaned, subschemas
from llmx.structured.tags import Tag, tags_from
from llmx.structured_params import StructuredOutputsParams

__all__ = ["spec_from"]


def spec_from(params: StructuredOutputsParams) -> GrammarSpec:
    """The grammar of a request. Raises GrammarError that says what is wrong and where; its field is the request's."""
    try:
        return _spec(params, params.form)
    except GrammarError as error:
        raise GrammarError(f"{params.field_name}: {error}", field=params.field_name) from error


def _spec(params: StructuredOutputsParams, form: str) -> GrammarSpec:
    space = WHITESPACE if params.whitespace_pattern is None else params.whitespace_pattern
    if params.disable_any_whitespace:
        space = ""
    match form:
        case "json_object":
            return GrammarSpec("json", '{"type":"object"}', space)
        case "json":
            return GrammarSpec("json", _dump(_schema(json.loads(str(params.json)), closed=params.disable_additional_properties)), space)
        case "regex":
            return GrammarSpec("regex", str(params.regex), "")
        case "grammar":
            return GrammarSpec("grammar", str(params.grammar), "")
        case "choice":
            return GrammarSpec("choice", _dump(list(dict.fromkeys(params.choice or ()))), "")
        case _:
            tags = tags_from(json.loads(str(params.structural_tag)))
            entries = [_tag(tag, closed=params.disable_additional_properties) for tag in tags.tags]
            normal = {"tags": entries, "triggers": tags.triggers, "at_least_one": tags.at_least_one, "stop_after_first": tags.stop_after_first}
            return GrammarSpec("structural_tag", _dump(normal), space)


def _tag(tag: Tag, *, closed: bool) -> dict[str, Any]:
    value = _schema(tag.value, closed=closed) if tag.content == "json_schema" else tag.value
    return {"begin": tag.begin, "end": tag.end, "content": tag.content, "value": value}


def _schema(schema: Any, *, closed: bool) -> Any:
    copy = cleaned(schema)
    check_references(copy)
    if closed:
        _close(copy)
    if copy is False:
        raise GrammarError("the schema is false: nothing could be written")
    return copy


def _close(schema: Any) -> None:
    """Objects that list properties take no others, unless they say so."""
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, Mapping):
            todo += [one for _, _, one in subschemas(value)]
            if "properties" in value and isinstance(value, dict):
                value.setdefault("additionalProperties", False)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
