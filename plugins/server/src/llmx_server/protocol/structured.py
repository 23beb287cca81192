"""response_format and structured_outputs: the form that an answer must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from llmx.errors import GrammarError
from llmx.structured import subschemas
from llmx.structured_params import StructuredOutputsParams
from llmx_server.body import shorten

__all__ = ["structured_params"]

_TYPES = "text, json_object, json_schema and structural_tag"
_OPTIONS = tuple(one.name for one in fields(StructuredOutputsParams) if one.name not in ("field_name", "after"))
_SCHEMA_KEYS = ("name", "description", "schema", "strict")


def structured_params(response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None) -> StructuredOutputsParams | None:
    """What the two fields ask for together; None when neither asks for a form. Raises GrammarError that names the field."""
    wanted = None if response_format is None else _from_format(response_format)
    given = {name: value for name, value in (structured_outputs or {}).items() if value is not None}
    if not given:
        return wanted
    if wanted is not None:
        raise GrammarError("structured_outputs and response_format both ask for a form: set one of them", field="structured_outputs")
    unknown = next((name for name in given if name not in _OPTIONS), None)
    if unknown is not None:
        raise GrammarError(f"structured_outputs.{unknown[:40]} is not known: it has {', '.join(_OPTIONS)}", field="structured_outputs")
    return StructuredOutputsParams(**given)


def _from_format(value: Mapping[str, Any]) -> StructuredOutputsParams | None:
    kind = value.get("type")
    match kind:
        case "text":
            _only(value, ("type",), "response_format")
            return None
        case "json_object":
            _only(value, ("type",), "response_format")
            return StructuredOutputsParams(json_object=True, field_name="response_format")
        case "json_schema":
            _only(value, ("type", "json_schema"), "response_format")
            return _from_schema(value.get("json_schema"))
        case "structural_tag":
            return StructuredOutputsParams(structural_tag=dict(value), field_name="response_format")
        case _:
            raise _error(f"response_format.type is {shorten(kind)}: {_TYPES} are supported")


def _from_schema(value: Any) -> StructuredOutputsParams:
    where = "response_format.json_schema"
    if not isinstance(value, dict):
        raise _error(f"{where} must be an object with name and schema")
    _only(value, _SCHEMA_KEYS, where)
    for name, kind in (("name", str), ("description", str), ("strict", bool)):
        if value.get(name) is not None and not isinstance(value[name], kind):
            raise _error(f"{where}.{name} is {shorten(value[name])}: it must be a {'string' if kind is str else 'boolean'}")
    schema = value.get("schema")
    if not isinstance(schema, dict | bool):
        raise _error(f"{where}.schema must be a JSON schema; for any JSON object use type json_object")
    params = StructuredOutputsParams(json=schema, field_name="response_format")
    if value.get("strict"):
        _check_strict(schema)
    return params


def _check_strict(schema: Any) -> None:
    """OpenAI's rules of strict: the root is an object, objects are closed, and all their properties are required."""
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        raise _error('strict is true, but the schema is not of "type": "object": make the root an object, or set strict to false')
    todo = [("#", schema)]
    while todo:
        pointer, value = todo.pop()
        if not isinstance(value, dict):
            continue
        properties = value.get("properties")
        is_object = value.get("type") == "object" or isinstance(properties, dict)
        if is_object and value.get("additionalProperties") is not False:
            raise _error(f'strict is true, but {pointer} has no "additionalProperties": false: add it, or set strict to false')
        required = value.get("required")
        missing = [name for name in properties or () if not isinstance(required, list) or name not in required] if isinstance(properties, dict) else []
        if missing:
            raise _error(f"strict is true, but {pointer} does not require {shorten(missing[0])}: name all properties in required, or set strict to false")
        todo += [(inside, one) for inside, _, one in subschemas(value, pointer)]


def _only(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    unknown = next((name for name in value if name not in names), None)
    if unknown is not None:
        remedy = "; a schema goes into json_schema.schema" if unknown == "schema" else ""
        raise _error(f"{where}.{unknown[:40]} is not known here{remedy}")


def _error(why: str) -> GrammarError:
    return GrammarError(why, field="response_format")
