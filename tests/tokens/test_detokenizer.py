"""Deltas join to the full decode: nothing lost, nothing doubled, never half a character."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmx.tokens.detokenizer import Detokenizer
from llmx.tokens.tokenizer import Tokenizer

FIXTURES = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def deltas(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.add(token) for token in ids), detokenizer.flush()]


@FIXTURES
@given(text=st.text(max_size=60))
def test_any_text_comes_back(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    parts = deltas(Detokenizer(smollm2, skip_special_tokens=False), ids)
    assert "".join(parts) == smollm2.decode(ids, skip_special_tokens=False)
    if smollm2.decode(ids, skip_special_tokens=False) == text and "\ufffd" not in text:  # not so for bytes that the vocabulary lacks
        assert "\ufffd" not in "".join(parts)


@FIXTURES
@given(ids=st.lists(st.integers(0, 49200), max_size=20), skip=st.booleans(), start=st.booleans())
def test_any_ids_join_to_the_full_decode(smollm2: Tokenizer, ids: list[int], skip: bool, start: bool) -> None:
    parts = deltas(Detokenizer(smollm2, skip_special_tokens=skip, at_start=start), ids)
    assert "".join(parts) == smollm2.decode(ids, skip, at_start=start)


@FIXTURES
@given(data=st.binary(max_size=24), ends=st.lists(st.integers(0, 24), max_size=3), skip=st.booleans(), start=st.booleans())
def test_runs_of_invalid_bytes(sentencepiece: Callable[..., Tokenizer], data: bytes, ends: list[int], skip: bool, start: bool) -> None:
    tokenizer = sentencepiece()
    ids = [3 + byte for byte in data]
    for at in ends:  # special tokens in the middle of characters
        ids.insert(at, 2)
    ids += tokenizer.encode("the a", add_special_tokens=False)
    parts = deltas(Detokenizer(tokenizer, skip_special_tokens=skip, at_start=start), ids)
    assert "".join(parts) == tokenizer.decode(ids, skip, at_start=start)
    joined = b"".join(tokenizer.token_bytes(token) for token in ids if not (skip and token == 2))
    assert "".join(parts).replace("\ufffd", "") in joined.decode("utf-8", "ignore") or start


def test_an_emoji_is_held_until_it_is_whole(smollm2: Tokenizer) -> None:
    detokenizer = Detokenizer(smollm2)
    ids = smollm2.encode("ok 👩‍🚀 猫")
    seen = ""
    for token in ids:
        seen += detokenizer.add(token)
        assert "\ufffd" not in seen and "ok 👩‍🚀 猫".startswith(seen)
    assert seen == "ok 👩‍🚀 猫" and detokenizer.flush() == "" and detokenizer.pending == 0


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_cut_character_ends_in_one_replacement(smollm2: Tokenizer, keep: int) -> None:
    ids = smollm2.encode("👩‍🚀")[:keep]
    parts = deltas(Detokenizer(smollm2), ids)
    assert "".join(parts).count("\ufffd") <= 1 and "".join(parts) == smollm2.decode(ids)
    assert all("\ufffd" not in part for part in parts[:-1])


def test_leading_space(sentencepiece: Callable[..., Tokenizer], smollm2: Tokenizer) -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("the a", add_special_tokens=False)
    assert Detokenizer(tokenizer).extend(ids) == " the a"  # it continues a prompt
    assert Detokenizer(tokenizer, at_start=True).extend([1, *ids]) == "the a"
    assert Detokenizer(smollm2, at_start=True).extend(smollm2.encode("  a    b .\n\n  c")) == "  a    b .\n\n  c"


def test_special_tokens(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("a<|im_end|>b")
    assert Detokenizer(smollm2).extend(ids) == "ab"
    assert Detokenizer(smollm2, skip_special_tokens=False).extend(ids) == "a<|im_end|>b"


def test_work_per_token_does_not_grow(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("the quick brown 猫 " * 50)
    detokenizer = Detokenizer(smollm2)

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(20):
            detokenizer.extend(ids)
        return time.perf_counter() - start

    first = seconds()
    for _ in range(10):
        last = seconds()
    assert last < 10 * first + 0.05


def test_the_reference_of_replacement_is_the_codec(sentencepiece: Callable[..., Tokenizer]) -> None:
    tokenizer = sentencepiece()
    data = b"\xf0\x9f\x91a\xe4\xbd\xff\xc3\xa9\xed\xa0\x80"
    assert Detokenizer(tokenizer).extend(3 + byte for byte in data) == codecs.decode(data, "utf-8", "replace")


class _Spaced:
    """Two special tokens whose text begins with a space, and a word that does too."""

    special_ids = frozenset({0, 1})
    strips_leading_space = False

    def token_bytes(self, token: int) -> bytes:
        return (b" <s>", b" </s>", b" word")[token]


@pytest.mark.parametrize(("spaces", "text"), [(True, " word <s> </s> word </s>"), (False, " word <s></s> word </s>")])
def test_special_tokens_lose_the_space_between_them(spaces: bool, text: str) -> None:
    shown = Detokenizer(_Spaced(), skip_special_tokens=False, spaces_between_special_tokens=spaces)  # type: ignore[arg-type]
    assert shown.extend([2, 0, 1, 2, 1]) == text
