"""Stop strings: the same result however the text is cut, and nothing is held back for longer than needed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmx.tokens.stop import StopChecker, StopHit


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None, int]:
    """(text shown, stop, its end) by trying every end, and at each end the longest stop first."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop, end
    return text, None, -1


def cut(text: str, borders: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[a:b] for a, b in zip(marks, marks[1:], strict=False)]


@settings(max_examples=1000, deadline=None)
@given(
    text=st.text("abc é", max_size=24),
    stops=st.lists(st.text("abc é", min_size=1, max_size=6), max_size=4),
    borders=st.lists(st.integers(0, 30), max_size=12),
    include=st.booleans(),
)
def test_equals_a_naive_search_however_the_text_is_cut(text: str, stops: list[str], borders: list[int], include: bool) -> None:
    checker = StopChecker(stops, include=include)
    pieces, shown, seen = cut(text, borders), "", 0
    wanted, stop, end = naive(text, stops, include)
    for index, piece in enumerate(pieces):
        shown += checker.feed(piece)
        seen += len(piece)
        if checker.hit is None:
            suffixes = [text[:seen][-n:] for n in range(1, seen + 1)]
            longest = max((len(s) for s in suffixes if any(x.startswith(s) and x != s for x in stops)), default=0)
            assert checker.held == text[seen - longest : seen] and shown + checker.held == text[:seen]
        elif stop is not None and seen - len(piece) < end <= seen:
            assert checker.hit == StopHit(stop, index)
    assert (checker.hit is None) == (stop is None)
    assert shown + checker.flush() == wanted


@pytest.mark.parametrize("pieces", [["red ", "lemon", " sky"], list("red lemon sky"), ["red lemon sky"], ["red lem", "", "on s", "k", "y"]])
def test_a_stop_across_tokens(pieces: list[str]) -> None:
    checker = StopChecker(["on sk"])
    assert "".join(checker.feed(piece) for piece in pieces) == "red lem" and checker.hit is not None and checker.flush() == ""


def test_held_text_comes_at_the_end() -> None:
    checker = StopChecker(["lemon!"])
    assert checker.feed("cold ") == "cold " and checker.feed("lem") == "" and checker.held == "lem"
    assert checker.flush() == "lem" and checker.flush() == "" and checker.hit is None


def test_the_token_that_completed_it_is_named() -> None:
    checker = StopChecker(["bc", "x"], include=True)
    assert [checker.feed(piece) for piece in ("a", "", "b", "cd", "x")] == ["a", "", "", "bc", ""]
    assert checker.hit == StopHit("bc", 3)


def test_earliest_end_wins_then_the_longest() -> None:
    first = StopChecker(["ab", "abc"])
    assert first.feed("xabc") == "x" and first.hit == StopHit("ab", 0)
    longest = StopChecker(["bc", "abc"])
    assert longest.feed("xabc") == "x" and longest.hit == StopHit("abc", 0)


def test_no_stops_hold_nothing() -> None:
    checker = StopChecker(())
    assert checker.feed("abc") == "abc" and checker.held == "" and checker.flush() == ""


def test_long_stops_cost_no_more_per_character() -> None:
    stop = "a" * 20_000 + "b"
    checker = StopChecker([stop])
    start = time.perf_counter()
    shown = "".join(checker.feed("aaaa") for _ in range(2_500))
    assert time.perf_counter() - start < 5 and shown == "" and len(checker.held) == 10_000


@pytest.mark.parametrize(("stop", "text"), [("aab", "xaaab"), ("abab#", "ababab#"), ("\n\n\n-", "\n\n\n\n-"), ("aabaaab", "aabaabaaab")])
def test_a_failed_match_falls_back_to_a_shorter_one(stop: str, text: str) -> None:
    for cut in range(len(text)):
        checker = StopChecker([stop])
        shown = checker.feed(text[:cut]) + checker.feed(text[cut:])
        assert checker.hit is not None and shown == text[: text.index(stop)]
