"""HeldSpace: white space at the edges of a stretch of text, decided when it is known what follows."""

from __future__ import annotations

__all__ = ["HeldSpace"]


class HeldSpace:
    """Text in pieces. With `hold` white space at its end waits for what follows; at its beginning it is left out while `lead` is set."""

    def __init__(self, *, lead: bool, hold: bool) -> None:
        self.lead = lead
        self._hold = hold
        self._space = ""

    def feed(self, text: str) -> str:
        """Text that may be given out now."""
        if self.lead:
            text = text.lstrip()
            if not text:
                return ""
            self.lead = False
        if not self._hold:
            return text
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        return body

    def drop(self) -> None:
        """What waits was white space before a marker: it is left out."""
        self._space = ""

    def flush(self) -> str:
        """What waits, at the end of the text."""
        text, self._space = self._space, ""
        return text
