"""Harmony, the format of gpt-oss: an answer is a row of messages, each on a channel; calls go to a recipient."""

from __future__ import annotations

import re

from llmx.answers.calls import Calls
from llmx.answers.events import CallArguments, CallStart, Content, Event, Reasoning
from llmx.answers.markers import find

__all__ = ["HarmonyParser"]

_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")


class HarmonyParser:
    """analysis is reasoning; final, and commentary without a recipient, is content; commentary to functions.NAME is a call."""

    def __init__(self, prompt: str = "", *, calls: bool = True, reasoning: bool = True) -> None:
        self._calls = Calls({})
        self._with_calls, self._with_reasoning = calls, reasoning
        self._held = ""
        self._kind = "header"
        self._header = ""
        start = prompt.rfind("<|start|>assistant")
        if start >= 0 and "<|message|>" in prompt[start:] and not any(end in prompt[start + 9 :] for end in _ENDS):
            self._header = prompt[start + 18 :].split("<|message|>")[0]
            self._open([])
        self._call: CallStart | None = None

    @property
    def reasons(self) -> bool:
        """What comes next is reasoning."""
        return self._kind == "reasoning"

    def feed(self, text: str) -> list[Event]:
        """Events that are certain by now."""
        self._held += text
        return self._read(final=False)

    def finish(self) -> list[Event]:
        """What was still held, at the end of the answer."""
        return self._read(final=True)

    def _read(self, final: bool) -> list[Event]:
        events: list[Event] = []
        while self._held:
            markers = ("<|message|>", *_ENDS) if self._kind == "header" else _ENDS
            at, marker = find(self._held, markers, final=final)
            piece, self._held = self._held[:at], self._held[at + len(marker or "") :]
            if self._kind == "header":
                self._header += piece
            elif piece:
                events.append(self._event(piece))
            if marker is None:
                if self._held and not final:
                    break
                continue
            if marker == "<|message|>":
                self._open(events)
            else:
                if self._kind == "header" and self._header.strip() and marker != "<|start|>" and "<|channel|>" not in self._header:
                    events.append(Content(self._header))  # no message: a model that does not speak the format
                self._kind, self._header, self._call = "header", "", None
        if final and self._kind == "header" and self._header.strip() and "<|channel|>" not in self._header:
            events.append(Content(self._header))
            self._header = ""
        return events

    def _open(self, events: list[Event]) -> None:
        header = self._header
        recipient = re.search(r"\bto=(?:functions\.)?([\w.\-]+)", header)
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        self._call = None
        if recipient and self._with_calls:
            self._kind, self._call = "call", self._calls.start(recipient[1])
            events.append(self._call)
        elif channel and channel[1] == "analysis":
            self._kind = "reasoning"
        else:
            self._kind = "content"

    def _event(self, piece: str) -> Event:
        if self._kind == "call" and self._call is not None:
            return CallArguments(self._call.index, piece)
        return Reasoning(piece) if self._kind == "reasoning" and self._with_reasoning else Content(piece)
