"""Thinking: cuts the reasoning off the front of an answer."""

from __future__ import annotations

from llmx.answers.markers import find
from llmx.answers.reasoning_formats import ReasoningFormat
from llmx.answers.spaces import HeldSpace
from llmx.structured_params import ReasoningSpan

__all__ = ["Thinking", "span_of"]


def span_of(form: ReasoningFormat, prompt: str) -> ReasoningSpan | None:
    """Where an answer to a rendered prompt has its reasoning; None where the prompt has closed it, or the format has no end marker."""
    tail = prompt.rstrip()
    if not form.end or tail.endswith(form.end):
        return None
    return ReasoningSpan(form.start, form.end, inside=form.at_once or tail.endswith(form.start))


class Thinking:
    """Takes text in pieces, gives (reasoning, text behind it). White space at the edges of the reasoning is left out."""

    def __init__(self, form: ReasoningFormat, prompt: str) -> None:
        tail = prompt.rstrip()
        self._form = form
        self._inside = tail.endswith(form.start) or (form.at_once and not tail.endswith(form.end))
        self._over = tail.endswith(form.end)
        self._start_may_come = not self._over and not tail.endswith(form.start)
        self._held = ""
        self._space = HeldSpace(lead=True, hold=True)

    @property
    def over(self) -> bool:
        """All that comes now is content."""
        return self._over

    def feed(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """What is certain by now. final: nothing follows, wherever the answer was cut off."""
        self._held += text
        if self._start_may_come and not self._look_for_start(final):
            return "", ""
        thought = ""
        if self._inside:
            at, marker = find(self._held, (self._form.end,), final=final)
            thought = self._space.feed(self._held[:at])
            self._held = self._held[at + len(marker or "") :]
            if marker is None:
                return thought, ""
            self._inside, self._over = False, True
        rest, self._held = self._held, ""
        return thought, rest

    def _look_for_start(self, final: bool) -> bool:
        """Whether it is decided how the answer begins."""
        text, start = self._held.lstrip(), self._form.start
        if len(text) < len(start) and start.startswith(text) and not final:
            return False
        self._start_may_come = False
        if text.startswith(start):
            self._inside, self._held = True, text[len(start) :]
        elif not self._inside:
            self._over = True
        return True
