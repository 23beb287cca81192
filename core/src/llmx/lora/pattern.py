"""Keys of rank_pattern and alpha_pattern, matched in time that grows with the name alone.

Python's `re` tries one way after the other, so a key of twenty characters can keep it busy for years. Here all ways are followed at once (Thompson, "Regular
Expression Search Algorithm", 1968), and sets of ways that were met before are known again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["NamePattern"]

_LONGEST, _PLACES, _STEPS = 500, 1000, 100_000  # characters of a key, places in it once counts are written out, steps that one key may take for all names
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\{(?:\d+(?:,\d*)?|,\d*)\}|.", re.DOTALL)
_BRANCHES = re.compile(r"[*+?{|(]")
_COUNTS = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}
_END = 0  # the place behind the last

_Link = Callable[[int], int]  # place that follows -> place where this piece begins


class NamePattern:
    """A regular expression for a module's name, or for its end behind a dot.

    text: as given. branches: whether it is more than a name: `re` matches a mere name in one go.
    Characters, classes, `.`, groups, `|`, counts, `^` and `$` mean what they do in Python; raises ValueError with the reason for anything else.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError(f"it has {len(text)} characters, more than {_LONGEST}")
        self.text = text
        try:
            re.compile(text)
            self._plain = re.compile(rf"(.*\.)?({text})")  # what is right alone may be wrong behind other text: flags like (?i)
            self.branches = _BRANCHES.search(text) is not None
            self._tests: list[re.Pattern[str] | str] = [""]  # of each place: a character's, "^", "$", or "" where nothing is read
            self._next: list[tuple[int, ...]] = [()]
            if self.branches:
                self._first = _Parser(text, self._place, self._repeated).whole()(_END)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._ends: dict[frozenset[int], bool] = {}
        self._steps = 0

    def matches(self, name: str) -> bool:
        """Raises ValueError for a key that takes too many steps; they are counted over all names."""
        if not self.branches:
            return self._plain.fullmatch(name) is not None
        here = self._closure({self._first}, "^")
        for character in name:
            there = self._known.get((here, character))
            if there is None:
                there = self._known[here, character] = self._after(here, character)
            here = there
        if here not in self._ends:
            self._ends[here] = _END in self._closure(here, "$" if name else "^$")
        return self._ends[here]

    def _after(self, here: frozenset[int], character: str) -> frozenset[int]:
        found = {self._first} if character == "." else set()
        for place in here:
            test = self._tests[place]
            if not isinstance(test, str) and test.fullmatch(character):
                found |= {*self._next[place]}
        return self._closure(found, "")

    def _closure(self, places: set[int] | frozenset[int], anchors: str) -> frozenset[int]:
        """What is reached from places without reading; anchors: those that are true here."""
        found, left = set(places), list(places)
        while left:
            place = left.pop()
            test = self._tests[place]
            self._steps += 1
            if self._steps > _STEPS:
                raise ValueError(f"it takes more than {_STEPS} steps")
            if isinstance(test, str) and (test in anchors or not test):
                left += [one for one in self._next[place] if one not in found]
                found |= {*self._next[place]}
        return frozenset(found)

    def _place(self, test: re.Pattern[str] | str, *following: int) -> int:
        if len(self._tests) >= _PLACES:
            raise ValueError(f"it is longer than {_PLACES} places once its counts are written out")
        self._tests.append(test)
        self._next.append(following)
        return len(self._tests) - 1

    def _loop(self, piece: _Link, after: int) -> int:
        place = self._place("")
        self._next[place] = (piece(place), after)
        return place

    def _repeated(self, piece: _Link, low: int, high: int) -> _Link:
        """A piece low to high times; high -1: without end."""

        def link(after: int) -> int:
            place = self._loop(piece, after) if high < 0 else after
            for _ in range(high - low):
                place = self._place("", piece(place), after)
            for _ in range(low):
                place = self._place("", piece(place))
            return place

        return link


class _Parser:
    """Reads a key that `re` has found to be right."""

    def __init__(self, text: str, place: Callable[..., int], repeated: Callable[[_Link, int, int], _Link]) -> None:
        self._tokens, self._at, self._place, self._repeated = _TOKEN.findall(text), 0, place, repeated

    def whole(self) -> _Link:
        """The piece that is the whole key."""
        ways = [self._row()]
        while self._peek() == "|":
            self._at += 1
            ways.append(self._row())
        return ways[0] if len(ways) == 1 else lambda after: self._place("", *(way(after) for way in ways))

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _row(self) -> _Link:
        pieces: list[_Link] = []
        while self._peek() not in ("", "|", ")"):
            pieces.append(self._counted(self._one()))

        def link(after: int) -> int:
            for piece in reversed(pieces):
                after = piece(after)
            return after

        return link

    def _counted(self, piece: _Link) -> _Link:
        token = self._peek()
        if token not in _COUNTS and not (len(token) > 1 and token[0] == "{"):
            return piece
        self._at += 1
        if self._peek() == "+":
            raise ValueError("possessive counts are not read")
        self._at += self._peek() == "?"  # lazy: the same names match
        if token in _COUNTS:
            return self._repeated(piece, *_COUNTS[token])
        low, comma, high = token[1:-1].partition(",")
        most = int(high) if high else -1 if comma else int(low)
        if max(int(low or 0), most) > _PLACES:
            raise ValueError(f"a count is above {_PLACES}")
        return self._repeated(piece, int(low or 0), most)

    def _one(self) -> _Link:
        token = self._peek()
        self._at += 1
        if token in ("(", "(?:"):
            if token == "(" and self._peek() == "?":
                raise ValueError("groups that begin with (? are not read, but (?:")
            inside = self.whole()
            self._at += 1
            return inside
        if token[0] == "\\" and token[1].isalnum() and token[1] not in "dDwWsS":
            raise ValueError(f"{token} is not read")
        test = token if token in ("^", "$") else re.compile(token if len(token) > 1 or token == "." else re.escape(token))
        return lambda after: self._place(test, after)
