"""Calls: the tool calls of one answer, counted, and the tools that may be called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llmx.answers.events import CallArguments, CallStart, Event

__all__ = ["Calls", "Parse", "ParsedCall"]

ParsedCall = tuple[str, Mapping[str, Any] | str]  # name; arguments, or their JSON text
Parse = Callable[[str, "Calls"], Sequence[ParsedCall] | None]  # body of a section, tools -> calls; None: not a call


class Calls:
    """Counts the calls of one answer and knows the tools that may be called: name -> JSON schema of the parameters."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.tools = tools
        self._next = 0

    def start(self, name: str, call_id: str = "") -> CallStart:
        """The event that begins the next call."""
        self._next += 1
        return CallStart(self._next - 1, name, call_id)

    def whole(self, name: str, arguments: Mapping[str, Any] | str) -> list[Event]:
        """The events of a call that is known whole."""
        start = self.start(name)
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return [start, CallArguments(start.index, text)]
