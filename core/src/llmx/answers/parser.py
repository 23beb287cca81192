"""AnswerParser: takes an answer apart while it streams. However the text is cut, the events put together are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from llmx.answers.calls import Calls
from llmx.answers.content import ContentReader
from llmx.answers.events import Event, Reasoning
from llmx.answers.harmony import HarmonyParser
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.thinking import Thinking

if TYPE_CHECKING:
    from llmx.answers.tool_formats import ToolFormat

__all__ = ["AnswerParser", "Parser", "answer_parser"]


class Parser(Protocol):
    """Takes the text of one answer in any pieces; `finish` at its end, wherever it was cut off."""

    def feed(self, text: str) -> Sequence[Event]:
        """Events that are certain by now."""
        ...

    def finish(self) -> Sequence[Event]:
        """What was still held."""
        ...


def answer_parser(
    reasoning: ReasoningFormat | None, tool_format: ToolFormat | None, tools: Mapping[str, Mapping[str, Any]] | None = None, prompt: str = ""
) -> Parser:
    """The machine for one answer. tools: name -> JSON schema of the parameters, of the tools that may be called, None: calls are text;
    prompt: the rendered prompt, whose end tells whether the reasoning is open already. Without a format all is content."""
    calls = tool_format if tools is not None else None
    if (calls and calls.section is None) or (reasoning and not reasoning.end):
        return HarmonyParser(prompt, calls=calls is not None, reasoning=reasoning is not None)
    return AnswerParser(reasoning, calls, Calls(tools or {}), prompt)


class AnswerParser:
    """Reasoning first, then content with calls."""

    def __init__(self, reasoning: ReasoningFormat | None, tool_format: ToolFormat | None, calls: Calls, prompt: str) -> None:
        cut = reasoning is not None and not reasoning.in_content
        self._thinking = Thinking(reasoning, prompt) if reasoning and cut else None
        self._content = ContentReader(tool_format, calls, reasoning.noise if reasoning else ())

    def feed(self, text: str) -> list[Event]:
        """Events that are certain by now. text: any piece of the answer."""
        return self._read(text, final=False)

    def finish(self) -> list[Event]:
        """What was still held."""
        return self._read("", final=True)

    def _read(self, text: str, *, final: bool) -> list[Event]:
        events: list[Event] = []
        if self._thinking is not None:
            thought, text = self._thinking.feed(text, final=final)
            if thought:
                self._content.after_reasoning()
                events.append(Reasoning(thought))
        return [*events, *self._content.feed(text, final=final)]
