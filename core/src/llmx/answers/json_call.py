"""One tool call written as JSON, read character by character, so that arguments go out while they are written."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llmx.record import record

__all__ = ["JsonCall", "JsonKeys", "JsonValue"]


@record
class JsonKeys:
    """Where a call object keeps its name and its arguments. Without name keys the object is {name: arguments}."""

    name: Sequence[str] = ("name",)
    arguments: Sequence[str] = ("arguments", "parameters")


class JsonValue:
    """Follows one JSON value. It ends with its own last character, but a number or a word ends before the character that follows it."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False
        self._begun = ""

    def takes(self, char: str) -> bool:
        """Whether char belongs to the value; False: a number or a word ended before it."""
        return not (self._begun == "word" and not self.in_string and char in ",]} \t\r\n")

    def feed(self, char: str) -> bool:
        """Takes the next character; True when the value is complete with it."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self.in_string = False
                return self.depth == 0
            return False
        if char == '"':
            self.in_string = True
            self._begun = self._begun or "string"
        elif char in "{[":
            self.depth += 1
            self._begun = self._begun or "nest"
        elif char in "}]":
            self.depth -= 1
            return self.depth == 0
        elif not char.isspace():
            self._begun = self._begun or "word"
        return False


class JsonCall:
    """Reads one object, from its brace on. name: known once it was read; new arguments come from `take`.

    Arguments that stand before the name wait for it. An object without a name is no call: `raw` has its text.
    """

    def __init__(self, keys: JsonKeys) -> None:
        self._keys = keys
        self._outer = JsonValue()
        self._inner: JsonValue | None = None  # the value of a key at depth 1
        self._key: str | None = None
        self._word: list[str] = []  # the key or value that is being read
        self._ready: list[str] = []  # arguments not given out yet
        self.raw: list[str] = []
        self.name: str | None = None
        self.has_arguments = False
        self.done = False

    def feed(self, char: str) -> None:
        """Takes the next character of the object."""
        self.raw.append(char)
        if self._inner is not None:
            if self._inner.takes(char):
                self._value(char)
                return
            self._end_value()
        depth, was_string = self._outer.depth, self._outer.in_string
        self.done = self._outer.feed(char)
        if depth != 1 or self.done:
            return
        if self._outer.in_string or was_string:
            self._word = [char] if not was_string else [*self._word, char]
        elif char == ":":
            self._key, self._word = _text("".join(self._word)), []
            self._inner = JsonValue()

    def take(self) -> str:
        """Arguments that were read since the last call, once the name is known."""
        if self.name is None or not self._ready:
            return ""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _value(self, char: str) -> None:
        if not self._word and char.isspace():
            return
        self._word.append(char)
        assert self._inner is not None
        if self._arguments() and self._word[0] == "{":
            self.has_arguments = True
            self._ready.append(char)
        if self._inner.feed(char):
            self._end_value()

    def _arguments(self) -> bool:
        if self._keys.name:
            return self._key in self._keys.arguments
        if self.name is None:
            self.name = self._key
        return self._key == self.name

    def _end_value(self) -> None:
        text, self._word, self._inner = "".join(self._word), [], None
        if self._keys.name and self._key in self._keys.name:
            self.name = _text(text) or None
        elif self._arguments() and not text.startswith("{"):  # a JSON text in a string, null, or nonsense that the reader should see
            self.has_arguments = True
            inner = _text(text) if text.startswith('"') else text
            self._ready.append("{}" if inner.strip() in ("", "null") else inner)


def _text(literal: str) -> str:
    try:
        value = json.loads(literal)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
