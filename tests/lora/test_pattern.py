"""Keys of rank_pattern and alpha_pattern: what Python's `re` finds, in a time that no key can stretch."""

from __future__ import annotations

import random
import re
from time import process_time

import pytest

from llmx.lora.pattern import NamePattern

NAMES = [
    "", "q", "q_proj", ".q", "a.q_proj", "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head", "aaa", "a.a.a", "ab.ba", "b", "aab",
    "model.layers.1", "abab", "x{2}", "a-b", "]",
]  # fmt: skip
KEYS = [
    "q_proj", "q|k", "(q|k)_proj", r"layers\.0\..*", r"layers\.(0|1\d)\.mlp\.\w+", "^q_proj", "^model.*proj$", "[^.]+", r"[\d.]+", "a{3}", "a{1,2}b", "a{,2}b?",
    "(ab){2}", "(?:a|b)*", "(a*)*b?", "a+?", ".", "",
    "|q", "()", "(^a|b)a", "x{2}", r"x\{2\}", "[]]",
    r"[\w\]-]*", "a$|b", "(a$)?b*", "{", r".*\.(up|down)_proj",
    "((a|b)(a|b)){1,2}", "$", "a.?.?a", "(a|a)+", "x{,}",
]  # fmt: skip


def _python(key: str, name: str) -> bool:
    return re.fullmatch(rf"(.*\.)?({key})", name) is not None


@pytest.mark.parametrize("key", KEYS)
def test_keys_match_what_python_says(key: str) -> None:
    pattern = NamePattern(key)
    for _ in range(2):  # the second time sets are known
        assert [name for name in NAMES if pattern.matches(name)] == [name for name in NAMES if _python(key, name)]


def test_keys_by_chance_match_what_python_says() -> None:
    rng, parts, tried = random.Random(3), ["a", "b", ".", r"\.", "(", ")", "|", "*", "+", "?", "{1,2}", "{2}", "^", "$", "[ab]"], 0
    while tried < 1500:
        key = "".join(rng.choices(parts, k=rng.randint(1, 7)))
        try:
            re.compile(key)
            pattern = NamePattern(key)
        except (re.error, ValueError):
            continue
        tried += 1
        for name in ["".join(rng.choices("ab.", k=rng.randint(0, 6))) for _ in range(6)]:
            assert pattern.matches(name) == _python(key, name), (key, name)


SLOW = ["(a+)+b", "(a|a)*b", "(a|aa)+b", "a?" * 40 + "a" * 40 + "b", ".*.*.*.*.*.*b", "((a{1,9}){1,9})*b", "(a|a)" * 40 + "b", "(x?){30}b"]


@pytest.mark.parametrize("key", SLOW)
def test_no_key_takes_long(key: str) -> None:
    began, pattern = process_time(), NamePattern(key)
    for index in range(200):
        assert not pattern.matches(f"layers.{index}." + "a" * 60)
    assert process_time() - began < 5.0


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("(", "unterminated subpattern"), ("(?i)q", "global flags"), ("(?=q)q", "groups that begin with"),
        (r"(a)\1", r"\\1 is not read"), (r"\bq*", r"\\b is not read"),
        ("a*+", "possessive counts"), ("(a{900}){900}", "places once its counts"), ("(){99999999}", "a count is above 1000"),
        ("((){1000}){1000}", "places once"),
        ("q" * 501, "501 characters, more than 500"), ("a{99999999999999}", "too large"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_said(key: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        NamePattern(key)


def test_a_key_whose_ways_are_too_many_is_refused() -> None:
    pattern = NamePattern("(a|b)*a" + "(a|b){200}")
    rng = random.Random(1)
    with pytest.raises(ValueError, match="more than 100000 steps"):
        for _ in range(100):
            pattern.matches("".join(rng.choices("ab", k=300)))
