"""Chat messages as templates want them: parsed tool arguments, text parts joined where a template takes strings only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmx.errors import RequestError

__all__ = ["normalise_messages"]


def normalise_messages(messages: Sequence[Mapping[str, Any]], parts: bool) -> list[dict[str, Any]]:
    """A copy of the messages for a template. parts: it takes lists of content parts; otherwise text parts are joined by newlines.

    An empty list of tool calls counts as absent, arguments written as JSON text become objects, null content becomes "" where the
    template takes strings only. Raises RequestError naming the message and the field.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a list of at least one message", field="messages")
    out = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] must be an object with a role", field="messages")
        copy = {str(key): value for key, value in message.items() if value is not None}  # null means absent, as in transformers
        if not copy.get("tool_calls"):
            copy.pop("tool_calls", None)
        else:
            copy["tool_calls"] = _tool_calls(copy["tool_calls"], f"messages[{index}].tool_calls")
        if "content" in copy:
            copy["content"] = _content(copy["content"], parts, f"messages[{index}].content")
        elif not parts:
            copy["content"] = ""
        out.append(copy)
    return out


def _content(content: Any, parts: bool, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{where} is a {type(content).__name__}: a string or a list of parts is needed", field="messages")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f"{where}[{number}] has type {kind!r}: this model takes parts of type 'text' only", field="messages")
        texts.append(part["text"])
    return [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts)


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise RequestError(f"{where} must be a list of objects", field="messages")
    out = []
    for index, call in enumerate(calls):
        copy, function = dict(call), call.get("function")
        if isinstance(function, Mapping):
            copy["function"] = {**function, "arguments": _arguments(function.get("arguments"), f"{where}[{index}].function.arguments")}
        out.append(copy)
    return out


def _arguments(arguments: Any, where: str) -> Any:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{where} is not JSON: {error}", field="messages") from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} must be a JSON object", field="messages")
    return arguments
