"""Structural tags: free text in which parts between a begin and an end have a form.

Two spellings are read: `structures` with `triggers`, and `format` of type triggered_tags or tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmx.errors import GrammarError
from llmx.record import record

__all__ = ["Tag", "Tags", "tags_from"]

_CONTENT = ("json_schema", "regex", "grammar", "any_text")


@record
class Tag:
    """One kind of tagged part. content: json_schema (value: the schema), regex or grammar (value: its text), any_text (value: None)."""

    begin: str
    end: str
    content: str
    value: Any


@record
class Tags:
    """The whole answer. triggers: where one appears in free text a tag must begin; empty: the answer is one tag and nothing else.

    at_least_one: the answer may not be free text alone. stop_after_first: it ends with the first tag.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...]
    at_least_one: bool = False
    stop_after_first: bool = False

    def of_trigger(self, trigger: str) -> list[Tag]:
        """The tags that a trigger may open."""
        return [tag for tag in self.tags if tag.begin.startswith(trigger)]


def tags_from(value: Mapping[str, Any]) -> Tags:
    """The Tags that a structural tag describes. Raises GrammarError naming the part that is missing, malformed or not known."""
    known = {"type", "structures", "triggers", "format"}
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise GrammarError(f"structural_tag.{unknown[:40]} is not known: it has structures and triggers, or format")
    if value.get("type", "structural_tag") != "structural_tag":
        raise GrammarError(f"structural_tag.type is {str(value['type'])[:40]!r}: it must be structural_tag")
    if "format" in value:
        return _format(_mapping(value["format"], "structural_tag.format"))
    structures = _filled(value.get("structures"), "structural_tag.structures")
    tags = tuple(_structure(one, f"structural_tag.structures[{index}]") for index, one in enumerate(structures))
    return _checked(Tags(tags, _strings(value.get("triggers"), "structural_tag.triggers")))


def _format(value: Mapping[str, Any]) -> Tags:
    where, kind = "structural_tag.format", value.get("type")
    if kind == "tag":
        return Tags((_tag(value, where),), ())
    if kind != "triggered_tags":
        raise GrammarError(f"{where}.type is {str(kind)[:40]!r}: triggered_tags and tag are supported")
    _only(value, ("type", "tags", "triggers", "at_least_one", "stop_after_first"), where)
    tags = tuple(_tag(one, f"{where}.tags[{index}]") for index, one in enumerate(_filled(value.get("tags"), f"{where}.tags")))
    switches = [value.get(name, False) for name in ("at_least_one", "stop_after_first")]
    if not all(isinstance(one, bool) for one in switches):
        raise GrammarError(f"{where}: at_least_one and stop_after_first must be true or false")
    return _checked(Tags(tags, _strings(value.get("triggers"), f"{where}.triggers"), *switches))


def _structure(value: Any, where: str) -> Tag:
    entry = _mapping(value, where)
    _only(entry, ("begin", "schema", "end"), where)
    return Tag(_string(entry, "begin", where), _string(entry, "end", where), "json_schema", _schema(entry.get("schema"), f"{where}.schema"))


def _tag(value: Any, where: str) -> Tag:
    entry = _mapping(value, where)
    _only(entry, ("type", "begin", "content", "end"), where)
    content = _mapping(entry.get("content"), f"{where}.content")
    kind = content.get("type")
    if kind not in _CONTENT:
        raise GrammarError(f"{where}.content.type is {str(kind)[:40]!r}: {', '.join(_CONTENT)} are supported")
    key = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar", "any_text": None}[kind]
    _only(content, ("type", key) if key else ("type",), f"{where}.content")
    inner: Any = None
    if kind == "json_schema":
        inner = _schema(content.get("json_schema"), f"{where}.content.json_schema")
    elif key is not None:
        inner = _string(content, key, f"{where}.content")
    return Tag(_string(entry, "begin", where), _string(entry, "end", where), kind, inner)


def _checked(tags: Tags) -> Tags:
    if not tags.triggers or not all(tags.triggers):
        raise GrammarError("structural_tag.triggers must have one or more non-empty strings")
    for tag in tags.tags:
        if not any(tag.begin.startswith(trigger) for trigger in tags.triggers):
            raise GrammarError(f"structural_tag: begin {tag.begin[:60]!r} starts with none of the triggers: add one")
    idle = next((trigger for trigger in tags.triggers if not tags.of_trigger(trigger)), None)
    if idle is not None:
        raise GrammarError(f"structural_tag: trigger {idle[:60]!r} starts no tag: leave it out")
    return tags


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise GrammarError(f"{where} must be an object, found {type(value).__name__}")
    return value


def _filled(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{where} must be a list of one or more entries")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in _filled(value, where)):
        raise GrammarError(f"{where} must be a list of strings")
    return tuple(value)


def _string(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise GrammarError(f"{where}.{name} must be a string, found {type(value).__name__}")
    return value


def _schema(value: Any, where: str) -> Any:
    if not isinstance(value, dict | bool):
        raise GrammarError(f"{where} must be a JSON schema, found {type(value).__name__}")
    return value


def _only(entry: Mapping[str, Any], names: tuple[str | None, ...], where: str) -> None:
    unknown = next((name for name in entry if name not in names), None)
    if unknown is not None:
        raise GrammarError(f"{where}.{unknown[:40]} is not known: it has {', '.join(name for name in names if name)}")
