"""Calls that a grammar forces: all that follows the reasoning is JSON, whatever the model's own way of writing calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmx.answers.calls import Calls
from llmx.answers.events import CallArguments, CallStart, Event, Reasoning
from llmx.answers.json_call import JsonKeys
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.sections import JsonSection
from llmx.answers.thinking import Thinking

__all__ = ["AfterReasoning", "AnyCalls", "OneCall", "any_calls_schema"]


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


class AfterReasoning:
    """Reasoning first, then what `behind` reads; white space between them is left out."""

    def __init__(self, form: ReasoningFormat, prompt: str, behind: AnyCalls | OneCall) -> None:
        self._thinking = Thinking(form, prompt)
        self._behind = behind
        self._begun = False

    def feed(self, text: str) -> Sequence[Event]:
        """See Parser."""
        return self._read(text, final=False)

    def finish(self) -> Sequence[Event]:
        """See Parser."""
        return [*self._read("", final=True), *self._behind.finish()]

    def _read(self, text: str, *, final: bool) -> list[Event]:
        thought, rest = self._thinking.feed(text, final=final)
        rest = rest if self._begun else rest.lstrip()
        self._begun = self._begun or bool(rest)
        return [*([Reasoning(thought)] if thought else []), *self._behind.feed(rest)]
