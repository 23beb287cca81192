"""Sections: the stretch of an answer from the marker that opens tool calls to where they end. One class per way of writing.

A section takes text in any pieces and gives events and, once it has ended, the text behind it. What turns out to be no call comes
back as Content, markers and all: nothing that a model wrote is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llmx.answers.calls import Calls, Parse
from llmx.answers.events import CallArguments, CallStart, Content, Event
from llmx.answers.json_call import JsonCall, JsonKeys, JsonValue
from llmx.answers.markers import find

__all__ = ["JsonSection", "NamedJsonSection", "Section", "TextSection"]

class Section(Protocol):
    """See the module. `feed` gives (events, text behind the section, or None while it goes on)."""

    def feed(self, text: str) -> tuple[list[Event], str | None]:
        """(events, text behind the section, or None while it goes on)."""
        ...

    def finish(self) -> list[Event]:
        """What was still held, when the answer ends inside the section."""
        ...


class TextSection:
    """Text up to a closing marker, read as a whole by `parse`. Without closes it ends with the bracket that closes the first one."""

    def __init__(self, opener: str, calls: Calls, *, closes: Sequence[str], parse: Parse, keep_opener: bool = False) -> None:
        self._opener, self._calls, self._closes, self._parse = opener, calls, closes, parse
        self._held = opener if keep_opener else ""
        self._keep = keep_opener

    def feed(self, text: str) -> tuple[list[Event], str | None]:
        """See Section."""
        self._held += text
        if not self._closes:
            end = _balanced(self._held)
            return (self._events(self._held[:end], ""), self._held[end:]) if end else ([], None)
        at, marker = find(self._held, self._closes)
        if marker is None:
            return [], None
        return self._events(self._held[:at], marker), self._held[at + len(marker) :]

    def finish(self) -> list[Event]:
        """See Section. A section that was cut off is text."""
        return [Content(("" if self._keep else self._opener) + self._held)]

    def _events(self, body: str, closer: str) -> list[Event]:
        calls = self._parse(body, self._calls)
        if calls is None:
            return [Content(("" if self._keep else self._opener) + body + closer)]
        return [event for name, arguments in calls for event in self._calls.whole(name, arguments)]


class JsonSection:
    """JSON objects, one after another or in an array, each a call. Without closes it ends behind the last of them.

    known_only: an object whose name is no tool is text (for formats without a marker, where any JSON answer looks like a call).
    """

    def __init__(
        self, opener: str, calls: Calls, *, keys: JsonKeys, closes: Sequence[str], skip: str = "", known_only: bool = False, keep_opener: bool = False
    ) -> None:
        self._calls, self._keys, self._closes, self._known_only = calls, keys, closes, known_only
        self._skip = " \t\r\n,[]" + skip
        self._passed = opener  # what was read since the section began or the last call ended
        self._held = opener if keep_opener else ""
        if keep_opener:
            self._passed = ""
        self._call: JsonCall | None = None
        self._started: CallStart | None = None
        self._any = False
        self._text = False  # what was passed over is no call: text
        self._depth = 0  # of the array around the calls

    def feed(self, text: str) -> tuple[list[Event], str | None]:
        """See Section."""
        self._held += text
        events: list[Event] = []
        while self._held:
            if self._call is not None:
                self._read(events)
                continue
            if self._closes:
                at, marker = find(self._held, self._closes)
                if at == 0 and marker is None:  # may become a closing marker
                    return events, None
                if self._text or at == 0:
                    end = at + len(marker or "")
                    self._passed, self._held = self._passed + self._held[:end], self._held[end:]
                    if marker is not None:
                        return (events if self._any and not self._text else [*events, Content(self._passed)]), self._held
                    continue
            char = self._held[0]
            if char == "{":
                self._call = JsonCall(self._keys)
            elif char in self._skip:
                self._passed, self._held = self._passed + char, self._held[1:]
                self._depth += (char == "[") - (char == "]")
                if char == "]" and self._depth <= 0 and not self._closes:
                    return self._ended(events)
            elif self._closes:
                self._text = True
            else:
                return self._ended(events)
        return events, None

    def finish(self) -> list[Event]:
        """See Section. A call that was cut off keeps what it gave; one that never had a name is text."""
        if self._call is not None and self._started is None:
            return [Content(self._passed + "".join(self._call.raw) + self._held)]
        if self._call is None and (self._text or not self._any):
            return [Content(self._passed + self._held)]
        return []

    def _ended(self, events: list[Event]) -> tuple[list[Event], str]:
        return (events if self._any and not self._text else [*events, Content(self._passed)]), self._held

    def _read(self, events: list[Event]) -> None:
        call = self._call
        assert call is not None
        used = 0
        for char in self._held:
            used += 1
            call.feed(char)
            if call.done:
                break
        self._held = self._held[used:]
        named = call.name is not None and (not self._known_only or call.name in self._calls.tools)
        if named and self._started is None and (call.has_arguments or call.done):
            assert call.name is not None
            self._started = self._calls.start(call.name)
            if self._text:
                events.append(Content(self._passed))
                self._text = False
            events.append(self._started)
        if self._started is not None and (text := call.take()):
            events.append(CallArguments(self._started.index, text))
        if not call.done:
            return
        self._call = None
        if self._started is None:  # no call: text, with what stands around it
            self._passed += "".join(call.raw)
            self._text = True
            return
        if not call.has_arguments:
            events.append(CallArguments(self._started.index, "{}"))
        self._any, self._passed, self._started = True, "", None


class NamedJsonSection:
    """A name, then the arguments as one JSON object. `name_of` reads what stands before the brace: (name, id), or None: not a call."""

    def __init__(self, opener: str, calls: Calls, *, name_of: Callable[[str], tuple[str, str] | None], closes: Sequence[str]) -> None:
        self._opener, self._calls, self._name_of, self._closes = opener, calls, name_of, closes
        self._held = ""
        self._value: JsonValue | None = None
        self._started: CallStart | None = None
        self._over = False  # the arguments have ended; the closing marker has not come

    def feed(self, text: str) -> tuple[list[Event], str | None]:
        """See Section."""
        self._held += text
        events: list[Event] = []
        if self._started is None:
            brace = self._held.find("{")
            at, marker = find(self._held, self._closes) if self._closes else (len(self._held), None)
            if marker is not None and (brace < 0 or at < brace):
                return self._without_arguments(at, marker)
            if brace < 0:
                return [], None
            named = self._name_of(self._held[:brace])
            if named is None:
                text, self._held = self._opener + self._held, ""
                return [Content(text)], ""
            self._started, self._value, self._held = self._calls.start(*named), JsonValue(), self._held[brace:]
            events.append(self._started)
        if not self._over:
            self._arguments(events)
        if not self._over:
            return events, None
        if not self._closes:
            return events, self._held
        at, marker = find(self._held, self._closes)
        return (events, None) if marker is None else (events, self._held[at + len(marker) :])

    def finish(self) -> list[Event]:
        """See Section."""
        return [Content(self._opener + self._held)] if self._started is None else []

    def _arguments(self, events: list[Event]) -> None:
        value, used = self._value, 0
        assert value is not None and self._started is not None
        for char in self._held:
            used += 1
            if value.feed(char):
                self._over = True
                break
        if used:
            events.append(CallArguments(self._started.index, self._held[:used]))
        self._held = self._held[used:]

    def _without_arguments(self, at: int, marker: str) -> tuple[list[Event], str]:
        named = self._name_of(self._held[:at])
        rest = self._held[at + len(marker) :]
        if named is None:
            return [Content(self._opener + self._held[: at + len(marker)])], rest
        start = self._calls.start(*named)
        return [start, CallArguments(start.index, "{}")], rest


def _balanced(text: str) -> int:
    """Index behind the bracket that closes the first one of text; 0 while it is open. Brackets in quotes do not count."""
    depth, quote, escaped = 0, "", False
    for index, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "[({":
            depth += 1
        elif char in "])}":
            depth -= 1
            if depth == 0:
                return index + 1
    return 0
