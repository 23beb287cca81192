"""Anthropic's content blocks as chat messages."""

from __future__ import annotations

from typing import Any

from llmx.errors import RequestError
from llmx_server.body import shorten

__all__ = ["messages_from", "system_text"]


def system_text(system: str | list[Any] | None) -> str:
    """The text of `system`: a string, or text blocks joined by a newline. Raises RequestError."""
    if system is None or isinstance(system, str):
        return system or ""
    return "\n".join(_text(block, f"system[{index}]", "system") for index, block in enumerate(system))


def messages_from(given: list[Any]) -> list[dict[str, Any]]:
    """Chat messages. Results of tools become messages of role tool, before the user's own text. Raises RequestError naming the block."""
    found: list[dict[str, Any]] = []
    for index, message in enumerate(given):
        place = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise RequestError(f"{place}.role is {shorten(role)}: it must be user or assistant; the system prompt is the field system", field="messages")
        content = message.get("content")
        if isinstance(content, str):
            found.append({"role": role, "content": content})
        elif isinstance(content, list):
            found += _assistant(content, place) if role == "assistant" else _user(content, place, role)
        else:
            raise RequestError(f"{place}.content is {shorten(content)}: it must be a string or a list of blocks", field="messages")
    return found


def _user(blocks: list[Any], place: str, role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    texts = []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        if isinstance(block, dict) and block.get("type") == "tool_result" and role == "user":
            found.append(_tool_result(block, where))
        else:
            texts.append(_text(block, where, "messages"))
    return [*found, {"role": role, "content": "\n".join(texts)}] if texts or not found else found


def _tool_result(block: dict[str, Any], where: str) -> dict[str, Any]:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str) or not call_id:
        raise RequestError(f"{where}.tool_use_id is {shorten(call_id)}: it must name the tool_use block that it answers", field="messages")
    if isinstance(content, list):
        content = "\n".join(_text(part, f"{where}.content[{index}]", "messages") for index, part in enumerate(content))
    if content is not None and not isinstance(content, str):
        raise RequestError(f"{where}.content is {shorten(content)}: it must be a string or a list of text blocks", field="messages")
    text = content or ""
    return {"role": "tool", "tool_call_id": call_id, "content": f"Error: {text}" if block.get("is_error") else text}


def _assistant(blocks: list[Any], place: str) -> list[dict[str, Any]]:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
                raise RequestError(f"{where} is a tool_use without name or input: send them as they were answered", field="messages")
            calls.append({"id": str(block.get("id") or ""), "type": "function", "function": {"name": block["name"], "arguments": block["input"]}})
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind != "redacted_thinking":  # nothing in it can be read
            texts.append(_text(block, where, "messages"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    return [{**message, "tool_calls": calls} if calls else message]


def _text(block: Any, where: str, field: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind != "text":
        remedy = "this model reads text only" if kind in ("image", "document") else "it must be a text block"
        raise RequestError(f"{where}.type is {shorten(kind)}: {remedy}", field=field)
    if not isinstance(block.get("text"), str):
        raise RequestError(f"{where}.text is {shorten(block.get('text'))}: it must be a string", field=field)
    return str(block["text"])
