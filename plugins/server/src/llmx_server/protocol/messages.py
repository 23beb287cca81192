"""Chat messages as templates want them: plain text content, known roles, tool calls with their arguments parsed."""

from __future__ import annotations

import json
from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["ROLES", "messages_of"]

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")
_PASSED = ("name", "tool_call_id", "reasoning", "reasoning_content")  # strings that a template may use


def messages_of(given: list[Any]) -> list[dict[str, Any]]:
    """The messages for a chat template. Raises RequestError that names the message at fault.

    Text parts are joined with a newline. `developer` becomes `system`, the name that templates know.
    """
    if not given:
        raise RequestError("messages is empty: send at least one message", field="messages")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(given)]


def _message(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError(f"{place} is {shorten(item)}: it must be an object with role and content", field="messages")
    role = item.get("role")
    if role not in ROLES:
        raise RequestError(f"{place}.role is {shorten(role)}: it must be one of {', '.join(ROLES)}", field="messages")
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    for name in _PASSED:
        if item.get(name) is not None:
            if not isinstance(item[name], str):
                raise RequestError(f"{place}.{name} is {shorten(item[name])}: it must be a string", field="messages")
            message[name] = item[name]
    calls = item.get("tool_calls")
    if calls:
        if role != "assistant":
            raise RequestError(f"{place} is from {role!r} and has tool_calls: only the assistant calls tools", field="messages")
        message["tool_calls"] = _tool_calls(calls, place)
    message["content"] = _content(item.get("content"), role, place)
    return message


def _content(content: Any, role: str, place: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise RequestError(f"{place}.content is {shorten(content)}: it must be a string or a list of text parts", field="messages")
    return "\n".join(_part(part, f"{place}.content[{index}]") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in _TEXT_PARTS:
        what = f"{place}.type is {shorten(kind)}" if isinstance(part, dict) else f"{place} is {shorten(part)}"
        raise RequestError(f"{what}: this model reads text only, parts must be of type 'text'", field="messages")
    if not isinstance(part.get("text"), str):
        raise RequestError(f"{place}.text is {shorten(part.get('text'))}: it must be a string", field="messages")
    return str(part["text"])


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError(f"{place}.tool_calls is {shorten(calls)}: it must be a list", field="messages")
    return [_tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{place} is {shorten(call)}: it must have function.name", field="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{place}.function.arguments is not valid JSON: {str(error)[:100]}", field="messages") from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RequestError(f"{place}.function.arguments is {shorten(arguments)}: it must be a JSON object", field="messages")
    return {"id": str(call.get("id") or ""), "type": "function", "function": {"name": function["name"], "arguments": arguments}}
