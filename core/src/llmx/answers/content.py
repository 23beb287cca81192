"""ContentReader: content, and tool calls in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmx.answers.calls import Calls
from llmx.answers.events import Content, Event
from llmx.answers.markers import find
from llmx.answers.sections import Section
from llmx.answers.spaces import HeldSpace

if TYPE_CHECKING:
    from llmx.answers.tool_formats import ToolFormat

__all__ = ["ContentReader"]


class ContentReader:
    """Takes text in pieces. White space before and between calls is left out, as are markers that mean nothing to a reader."""

    def __init__(self, form: ToolFormat | None, calls: Calls, noise: Sequence[str]) -> None:
        self._form, self._calls = form, calls
        self._noise = (*noise, *(form.noise if form else ()))
        self._opens = tuple(form.opens) if form else ()
        self._bare = tuple(form.bare) if form else ()
        self._space = HeldSpace(lead=False, hold=bool(self._noise or self._opens or self._bare))
        self._blank = True  # no content was given out yet: a bare call may begin
        self._held = ""
        self._section: Section | None = None

    def after_reasoning(self) -> None:
        """Content begins behind reasoning: white space between them is left out."""
        self._space.lead = True

    def feed(self, text: str, *, final: bool = False) -> list[Event]:
        """Events that are certain by now. final: nothing follows."""
        self._held += text
        events: list[Event] = []
        while self._held and (self._inside(events) if self._section is not None else self._outside(events, final)):
            pass
        if final:
            if self._section is not None:
                events += self._passed(self._section.finish())
                self._section = None
            if self._held:  # behind a section that has just ended
                events += self.feed("", final=True)
            elif space := self._space.flush():
                events.append(Content(space))
        return events

    def _inside(self, events: list[Event]) -> bool:
        """Reads on inside a section; False: all text is used up."""
        assert self._section is not None
        given, rest = self._section.feed(self._held)
        events += self._passed(given)
        self._held = rest or ""
        if rest is not None:
            self._section = None
        return rest is not None

    def _outside(self, events: list[Event], final: bool) -> bool:
        """Reads on outside of calls; False: what is held waits for more."""
        if self._bare and self._blank:
            stripped = self._held.lstrip()
            if not stripped and not final:
                return False
            opener = next((text for text in self._bare if stripped.startswith(text)), None)
            if opener is not None:
                self._open(opener, bare=True)
                self._held = stripped[len(opener) :]
                return True
        at, marker = find(self._held, (*self._opens, *self._noise), final=final)
        events += self._text(self._held[:at])
        self._held = self._held[at + len(marker or "") :]
        if marker in self._opens:
            self._open(marker or "", bare=False)
        elif marker is not None:
            self._space.drop()
            self._space.lead = True
        return marker is not None

    def _open(self, opener: str, bare: bool) -> None:
        assert self._form is not None and self._form.section is not None
        self._space.drop()
        self._section = self._form.section(opener, self._calls, bare)

    def _text(self, text: str) -> list[Event]:
        text = self._space.feed(text)
        if not text:
            return []
        self._blank = False
        return [Content(text)]

    def _passed(self, given: list[Event]) -> list[Event]:
        """Events of a section; text in them is content as any other."""
        return [passed for event in given for passed in (self._text(event.text) if isinstance(event, Content) else [event])]
