"""Input items of /v1/responses as chat messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["chat_messages", "input_items", "item_id"]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def item_id(kind: str) -> str:
    """A new id for an item of a type."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(24)}"


def input_items(given: str | list[Any]) -> list[dict[str, Any]]:
    """The items of `input`, each with a type and an id. A string is one message of the user. Raises RequestError naming the item."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    found = []
    for index, item in enumerate(given):
        place = f"input[{index}]"
        if not isinstance(item, dict):
            raise _error(f"{place} is {shorten(item)}: it must be an object")
        kind = item.get("type") or "message"
        if kind not in _PREFIXES:
            remedy = "send the item itself, or previous_response_id" if kind == "item_reference" else f"it must be {', '.join(_PREFIXES)}"
            raise _error(f"{place}.type is {shorten(kind)}: {remedy}")
        found.append({**item, "type": kind, "id": item.get("id") or item_id(kind)})
    return found


def chat_messages(items: Sequence[Mapping[str, Any]], first: int = 0) -> list[dict[str, Any]]:
    """Chat messages that say the same. Reasoning and calls join the assistant's message that they belong to.

    first: number of the items that come from earlier responses; errors count from there. Raises RequestError naming the item.
    """
    found: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        place = f"input[{number - first}]"
        match item["type"]:
            case "reasoning":
                _assistant(found, begins=True)["reasoning_content"] = _thoughts(item, place)
            case "function_call":
                _assistant(found).setdefault("tool_calls", []).append(_call(item, place))
            case "function_call_output":
                found.append(_result(item, place))
            case _:
                _add_message(found, item, place)
    return found


def _assistant(found: list[dict[str, Any]], *, begins: bool = False) -> dict[str, Any]:
    """The assistant's message that is being put together. begins: one that says something already is complete."""
    last = found[-1] if found else None
    if last is None or last["role"] != "assistant" or (begins and (last["content"] or "tool_calls" in last or "reasoning_content" in last)):
        found.append({"role": "assistant", "content": ""})
    return found[-1]


def _add_message(found: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise _error(f"{place}.role is {shorten(role)}: it must be one of {', '.join(_ROLES)}")
    text = _text(content, f"{place}.content")
    last = found[-1] if found else None
    if role == "assistant" and last is not None and last["role"] == "assistant" and not last["content"]:
        last["content"] = text  # what was thought or called just before it
    else:
        found.append({"role": role, "content": text})


def _text(content: Any, place: str) -> str:
    """A string, or the text of parts, joined by a newline."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _error(f"{place} is {shorten(content)}: it must be a string or a list of text parts")
    return "\n".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in _TEXT_PARTS:
        what = f"{place}.type is {shorten(kind)}" if isinstance(part, dict) else f"{place} is {shorten(part)}"
        raise _error(f"{what}: this model reads text only, parts must be of type 'input_text' or 'output_text'")
    if not isinstance(part.get("text"), str):
        raise _error(f"{place}.text is {shorten(part.get('text'))}: it must be a string")
    return str(part["text"])


def _thoughts(item: Mapping[str, Any], place: str) -> str:
    """What a reasoning item says; encrypted content cannot be read."""
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        raise _error(f"{place} is a reasoning item whose content or summary has no text: send it as it was answered")
    return "\n".join(part["text"] for part in parts)


def _call(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    name, call_id, arguments = item.get("name"), item.get("call_id"), item.get("arguments")
    for key, value in (("name", name), ("call_id", call_id), ("arguments", arguments)):
        if not isinstance(value, str):
            raise _error(f"{place}.{key} is {shorten(value)}: it must be a string")
    try:
        value = json.loads(arguments) if str(arguments).strip() else {}  # type: ignore[arg-type]
    except (ValueError, RecursionError) as error:
        raise _error(f"{place}.arguments is not valid JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise _error(f"{place}.arguments is {shorten(value)}: it must be a JSON object")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": value}}


def _result(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        raise _error(f"{place}.call_id is {shorten(call_id)}: it must name the function_call that it answers")
    return {"role": "tool", "tool_call_id": call_id, "content": _text(item.get("output"), f"{place}.output")}


def _error(why: str) -> RequestError:
    return RequestError(why, field="input")
