"""What an answer is made of, in the order in which it was said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llmx.record import record

__all__ = ["Answer", "Call", "CallArguments", "CallStart", "Content", "Event", "Reasoning", "joined"]


@record
class Content:
    """Text for the reader."""

    text: str


@record
class Reasoning:
    """Text of the model's thoughts."""

    text: str


@record
class CallStart:
    """A tool call begins. index: 0, 1, ... in the order of the calls; id: the model's own, where the format has one."""

    index: int
    name: str
    id: str = ""


@record
class CallArguments:
    """The next part of a call's arguments, a JSON object as text."""

    index: int
    text: str


Event = Content | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """One tool call, whole."""

    name: str
    arguments: str = ""
    id: str = ""


@dataclass(slots=True)
class Answer:
    """An answer, whole. A part that did not occur is ""."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def joined(events: Iterable[Event]) -> Answer:
    """All events of an answer put together."""
    answer = Answer()
    for event in events:
        match event:
            case Content(text):
                answer.content += text
            case Reasoning(text):
                answer.reasoning += text
            case CallStart(_, name, call_id):
                answer.calls.append(Call(name, "", call_id))
            case CallArguments(index, text):
                answer.calls[index].arguments += text
    return answer
