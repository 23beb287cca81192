"""Calls that a grammar forces: the whole answer is JSON, whatever the model's own way of writing calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmx.answers.calls import Calls
from llmx.answers.events import CallArguments, CallStart, Event
from llmx.answers.json_call import JsonKeys
from llmx.answers.sections import JsonSection

__all__ = ["AnyCalls", "OneCall", "any_calls_schema"]


def any_calls_schema(tools: Mapping[str, Mapping[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The JSON schema of one or more calls of `tools` (name -> schema of the parameters): a list of {name, parameters}."""
    one = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": schema},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for name, schema in tools.items()
    ]
    calls = {"type": "array", "minItems": 1, "items": one[0] if len(one) == 1 else {"anyOf": one}}
    return calls if parallel else {**calls, "maxItems": 1}


class AnyCalls:
    """Reads what any_calls_schema forced."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._section = JsonSection("", Calls(tools), keys=JsonKeys(("name",), ("parameters",)), closes=())
        self._over = False

    def feed(self, text: str) -> Sequence[Event]:
        """See Parser."""
        if self._over:
            return []
        events, rest = self._section.feed(text)
        self._over = rest is not None
        return events

    def finish(self) -> Sequence[Event]:
        """See Parser. A call that was cut off before its name was written is none."""
        return []


class OneCall:
    """Reads the arguments of one named tool."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False

    def feed(self, text: str) -> Sequence[Event]:
        """See Parser."""
        if not text:
            return []
        begun: list[Event] = [] if self._started else [CallStart(0, self._name)]
        self._started = True
        return [*begun, CallArguments(0, text)]

    def finish(self) -> Sequence[Event]:
        """See Parser."""
        return []
