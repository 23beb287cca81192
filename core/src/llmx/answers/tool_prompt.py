"""Tools for models whose chat template knows none: they are described in the system message, and calls are read in Hermes's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["PLAIN_FORMAT", "described", "plain_history"]

PLAIN_FORMAT = "hermes"  # how a model is asked to write its calls


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the tools in the system message, one made where there is none."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = (
        f"You may call these tools:\n<tools>\n{lines}\n</tools>\n"
        'To call one, answer with: <tool_call>{"name": NAME, "arguments": {...}}</tool_call>\n'
        "The result comes in <tool_response></tool_response>. If no tool helps, answer as usual."
    )
    chat = [dict(message) for message in messages]
    if chat and chat[0]["role"] == "system":
        chat[0]["content"] = f"{chat[0]['content']}\n\n{text}" if chat[0].get("content") else text
        return chat
    return [{"role": "system", "content": text}, *chat]


def plain_history(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with calls and their results written out as text, so that no template drops them."""
    chat = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        if calls:
            text = "\n".join(f"<tool_call>{json.dumps({'name': c['name'], 'arguments': c['arguments']}, ensure_ascii=False)}</tool_call>" for c in calls)
            plain["content"] = f"{plain['content']}\n{text}" if plain.get("content") else text
        if message["role"] == "tool":
            plain = {"role": "user", "content": f"<tool_response>\n{plain.get('content') or ''}\n</tool_response>"}
        chat.append(plain)
    return chat
