"""References of a cleaned JSON schema: each stays inside the schema, and something finite can be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from llmx.errors import GrammarError
from llmx.structured.schema import join, subschemas

__all__ = ["check_references"]


def check_references(schema: Any) -> None:
    """Raise GrammarError for a `$ref` that leaves the schema or points nowhere, and for a schema that only endless texts satisfy."""
    places = _places(schema)
    for pointer, value in places.items():
        if isinstance(value, dict) and "$ref" in value:
            target = _target(value["$ref"], join(pointer, "$ref"))
            if target not in places:
                raise GrammarError(f"{join(pointer, '$ref')} is {str(value['$ref'])[:80]!r}: no schema is there")
    if "#" not in _finite(places):
        raise GrammarError("the schema has no finite answer: its $ref or required properties lead back to itself without an end")


def _places(schema: Any) -> dict[str, Any]:
    """Every schema by its pointer."""
    found, todo = {}, [("#", schema)]
    while todo:
        pointer, value = todo.pop()
        found[pointer] = value
        if isinstance(value, dict):
            todo += [(inside, one) for inside, _, one in subschemas(value, pointer)]
    return found


def _target(ref: str, where: str) -> str:
    """The pointer that a reference means, as `_places` writes it."""
    if ref != "#" and not ref.startswith("#/"):
        remedy = "only references inside the schema, # or #/..., are followed; nothing is fetched"
        raise GrammarError(f"{where} is {ref[:80]!r}: {remedy}")
    parts = [unquote(part).replace("~1", "/").replace("~0", "~") for part in ref.split("/")[1:]]
    return join("#", *parts)


def _finite(places: Mapping[str, Any]) -> set[str]:
    """Pointers of schemas that some finite value can satisfy, as far as nesting decides it: the least fixed point."""
    finite: set[str] = set()
    while True:
        more = {pointer for pointer, value in places.items() if pointer not in finite and _is_finite(pointer, value, finite)}
        if not more:
            return finite
        finite |= more


def _is_finite(pointer: str, value: Any, finite: set[str]) -> bool:
    if isinstance(value, bool):
        return value
    if "$ref" in value and _target(value["$ref"], pointer) not in finite:
        return False
    if any(join(pointer, "allOf", index) not in finite for index in range(len(value.get("allOf", ())))):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in value and not any(join(pointer, keyword, index) in finite for index in range(len(value[keyword]))):
            return False
    if "const" in value or "enum" in value:
        return True
    types = value.get("type", "string")
    kinds = set(types if isinstance(types, list) else [types])
    if kinds - {"object", "array"}:
        return True
    return ("object" in kinds and _object_ends(pointer, value, finite)) or ("array" in kinds and _array_ends(pointer, value, finite))


def _object_ends(pointer: str, value: Mapping[str, Any], finite: set[str]) -> bool:
    listed = value.get("properties", {})
    return all(join(pointer, "properties", name) in finite for name in value.get("required", ()) if name in listed)


def _array_ends(pointer: str, value: Mapping[str, Any], finite: set[str]) -> bool:
    least, fixed = int(value.get("minItems", 0)), len(value.get("prefixItems", ()))
    if any(join(pointer, "prefixItems", index) not in finite for index in range(min(least, fixed))):
        return False
    return least <= fixed or "items" not in value or join(pointer, "items") in finite
