"""AnswerForm: how the answers of one request are taken apart: reasoning, content and tool calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

from llmx.answers.events import Answer, CallArguments, CallStart, Content, Event, Reasoning, joined
from llmx.answers.forced import AfterReasoning, AnyCalls, OneCall
from llmx.answers.parser import Parser, answer_parser
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.tool_formats import ToolFormat
from llmx.record import record
from llmx_server.protocol.tools import Tools

__all__ = ["AnswerForm", "CallIds", "deltas", "finish_reason", "message_of"]

_LETTERS = string.ascii_letters + string.digits


@record
class AnswerForm:
    """The formats of one request. prompt: as rendered; its end tells whether the reasoning is open already."""

    reasoning: ReasoningFormat | None
    tool_format: ToolFormat | None
    tools: Tools | None
    prompt: str
    show_reasoning: bool = True

    @property
    def plain(self) -> bool:
        """The text of an answer is its content: nothing needs to be taken apart."""
        return self.reasoning is None and self.tools is None

    @property
    def ids(self) -> str:
        """How call ids look."""
        return self.tool_format.ids if self.tool_format else ""

    def parser(self) -> Parser:
        """A new parser for one answer."""
        if self.tools is not None and self.tools.choice in ("required", "named"):
            calls = AnyCalls(self.tools.schemas) if self.tools.choice == "required" else OneCall(self.tools.named)
            return calls if self.reasoning is None else AfterReasoning(self.reasoning, self.prompt, calls)
        return answer_parser(self.reasoning, self.tool_format, self.tools.schemas if self.tools else None, self.prompt)

    def events(self, given: Sequence[Event]) -> list[Event]:
        """Without what the client does not want: reasoning, or calls after the first."""
        return [event for event in given if self._wanted(event)]

    def read(self, text: str) -> Answer:
        """A whole answer."""
        parser = self.parser()
        return joined(self.events([*parser.feed(text), *parser.finish()]))

    def _wanted(self, event: Event) -> bool:
        if isinstance(event, Reasoning):
            return self.show_reasoning
        if isinstance(event, CallStart | CallArguments):
            return event.index == 0 or self.tools is None or self.tools.parallel
        return True


class CallIds:
    """Ids of the calls of one answer: the model's own, else new ones in the style of its family."""

    def __init__(self, style: str) -> None:
        self._style = style

    def of(self, given: str) -> str:
        """The id of a call whose model wrote `given`, or ""."""
        if given:
            return given
        if self._style == "mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"{'toolu' if self._style == 'anthropic' else 'call'}_{secrets.token_hex(12)}"


def message_of(answer: Answer, ids: CallIds) -> dict[str, Any]:
    """The message of a whole answer. content is null where there are calls and nothing was said beside them."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content or (None if answer.calls or answer.reasoning else ""), "refusal": None}
    if answer.reasoning:
        message |= _reasoning(answer.reasoning)
    if answer.calls:
        message["tool_calls"] = [
            {"id": ids.of(call.id), "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in answer.calls
        ]
    return message


def deltas(events: Sequence[Event], ids: CallIds) -> list[dict[str, Any]]:
    """The deltas that tell of events; neighbours of one kind are joined."""
    found: list[dict[str, Any]] = []
    for event in events:
        match event:
            case Content(text):
                found.append({"content": text})
            case Reasoning(text):
                found.append(_reasoning(text))
            case CallStart(index, name, call_id):
                head = {"index": index, "id": ids.of(call_id), "type": "function", "function": {"name": name, "arguments": ""}}
                found.append({"tool_calls": [head]})
            case CallArguments(index, text):
                last = found[-1].get("tool_calls") if found else None
                if last and last[0]["index"] == index:
                    last[0]["function"]["arguments"] += text
                else:
                    found.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return found


def finish_reason(reason: str | None, called: bool, tools: Tools | None) -> str | None:
    """tool_calls for an answer that ended by itself and calls; a call that was forced by name ends with stop, as OpenAI's does."""
    return "tool_calls" if reason == "stop" and called and not (tools and tools.choice == "named") else reason


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning": text, "reasoning_content": text}  # both names are in use
