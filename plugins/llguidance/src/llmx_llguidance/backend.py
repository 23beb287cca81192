"""LLGuidanceBackend: the Backend protocol over llguidance."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from llmx.errors import GrammarError
from llmx.structured import GrammarSpec, TokenTable, mask_words
from llmx_llguidance.formats import FORMATS
from llmx_llguidance.grammars import lark_of

__all__ = ["LLGuidanceBackend"]

_MAX_GRAMMAR = 500_000  # symbols of a grammar
_MAX_STATES = 50_000  # of a lexer; 1 to 2 kB each
_THREADS = 4  # that share the masks of a large step
_LARGE = 64  # rows; below, waking the threads takes longer than they save (16 rows on two processors: 1.9 ms with them, 1.5 ms without)
# Tokens of these patterns are allowed together where a state allows the whole pattern, so that the vocabulary need not be walked. Lengths in
# small steps, for strings that come near their maxLength: 62 us a mask instead of 87 with llguidance's own two (10 and 30), over ten strings of 60 to 80.
_TEXT = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_TEXT}{{1,{length}}}" for length in (3, 6, 10, 16, 30)), f"{_TEXT}+"]
_STEP_FUEL = 200_000  # lexer work for one mask; about 15 ms
_STEP_ITEMS = 50_000  # parser items for one mask; about 3 ms
_LOOKS = {"End": "$ inside a pattern", "Start": "^ inside a pattern", "WordUnicode": r"\b", "WordUnicodeNegate": r"\B"}


class _Vocabulary:
    """What LLTokenizer asks of a tokenizer. It never encodes: nothing is forced."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable) -> None:
        # An id without bytes must never be drawn, so it is given the shape of a special token that no grammar names.
        self.tokens = [token or b"\xff<|no text %d|>" % index for index, token in enumerate(table.tokens)]
        self.special_token_ids = sorted(table.special_ids)
        self.eos_token_id = table.eos_ids[0]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("no text is encoded for a grammar")


class _Matcher:
    """llguidance's matcher, and why it stopped."""

    __slots__ = ("error", "inner")

    def __init__(self, inner: LLMatcher) -> None:
        self.inner = inner
        self.error: str | None = None

    def fork(self) -> _Matcher:
        return _Matcher(self.inner.deep_copy())


class _Compiled:
    """A matcher at the beginning, to be copied."""

    __slots__ = ("_template",)

    def __init__(self, template: LLMatcher) -> None:
        self._template = template

    def matcher(self) -> _Matcher:
        return _Matcher(self._template.deep_copy())


class LLGuidanceBackend:
    """Compiles for one vocabulary. Masks of a step are computed by one call that releases the GIL."""

    name = "llguidance"

    def __init__(self, table: TokenTable) -> None:
        if not table.eos_ids:
            raise GrammarError("the model has no end-of-sequence token: an answer under a grammar could not end")
        self._eos = table.eos_ids
        self._vocab = len(table.tokens)
        self._words = mask_words(self._vocab)
        vocabulary: Any = _Vocabulary(table)  # duck-typed: the base class would call it to see what it takes
        self._tokenizer = LLTokenizer(vocabulary, n_vocab=self._vocab, eos_token=list(table.eos_ids), slices=_SLICES)
        self._executor = LLExecutor(min(_THREADS, len(os.sched_getaffinity(0))))
        self._limits = LLParserLimits(
            max_grammar_size=_MAX_GRAMMAR, max_lexer_states=_MAX_STATES, step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS, verbose_errors=False
        )

    def compile(self, spec: GrammarSpec) -> _Compiled:
        """The compiled grammar; see llmx.structured.Backend."""
        template = LLMatcher(self._tokenizer, lark_of(spec), log_level=0, limits=self._limits)
        mask = np.zeros((1, self._words), np.uint32)
        if not template.is_error():
            template.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if template.is_error():
            raise GrammarError(_explain(spec, template.get_error()))
        if not mask.any():
            raise GrammarError("nothing can be written: the grammar allows no first token")
        return _Compiled(template.deep_copy())

    def fill(self, matchers: Sequence[_Matcher], tokens: Sequence[Sequence[int]], rows: Sequence[int], mask: np.ndarray) -> None:
        """Masks of one step; see llmx.structured.Backend."""
        work: list[Any] = []
        for matcher, new, row in zip(matchers, tokens, rows, strict=True):
            if matcher.error is None and new and not matcher.inner.consume_tokens(list(new)):
                matcher.error = _first_line(matcher.inner.get_error())
            if matcher.error is None:
                work.append((matcher, row))
        if len(work) < _LARGE:
            at, size = mask.ctypes.data, self._words * 4
            for matcher, row in work:
                matcher.inner.unsafe_compute_mask_ptr(at + row * size, size)
        else:
            inner = [(matcher.inner, row) for matcher, row in work]
            self._executor.unsafe_compute_mask_ptr(inner, mask.ctypes.data, self._words * 4, len(mask))
        for matcher, _ in work:
            if matcher.inner.is_error():
                matcher.error = _first_line(matcher.inner.get_error())


def _first_line(text: str) -> str:
    return text.replace("<non-verbose/>", "").strip().split("\n", 1)[0][:300]


def _explain(spec: GrammarSpec, text: str) -> str:
    """llguidance's reason in terms of what the user wrote."""
    text = text.replace("<non-verbose/>", "").strip()
    if "oneOf constraints" in text:
        return "oneOf: its alternatives may overlap, which cannot be enforced: use anyOf, or alternatives that differ in type or in a const"
    unknown = re.search(r"Unknown format: (\S+)", text)
    if unknown is not None:
        return f"format: {unknown[1][:40]!r} cannot be enforced: leave it out; enforced are {', '.join(FORMATS)}"
    if spec.kind == "regex":
        return "regex: " + _regex_reason(text)
    if spec.kind == "grammar":
        return _grammar_reason(text)
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", text)
    if "regex parse error" in text or "lookarounds" in text:
        return "pattern: " + _regex_reason(text)
    return text.split("\n", 1)[0][:300]


def _regex_reason(text: str) -> str:
    """What is wrong and, where the parser points at it, at which character (from 1)."""
    pointer = re.search(r"^ {4}( *)\^+\s*$", text, re.MULTILINE)
    reason = re.search(r"error: (.*)", text)
    if pointer is not None and reason is not None:
        return f"at character {len(pointer[1]) + 1}: {reason[1].strip()}"
    found = re.search(r"lookarounds not supported yet; (\w+)", text)
    if found is not None:
        what = _LOOKS.get(found[1], found[1])
        return f"{what} is not supported: ^ may only stand first and $ last"
    return _first_line(text)


def _grammar_reason(text: str) -> str:
    """The first line of the reason, with the line of the grammar: the head that is put before it is taken off."""
    found = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", text)
    if found is None:
        return "grammar: " + _first_line(text)
    return f"grammar: line {max(int(found[1]) - 1, 1)}, column {found[2]}: {found[3]}"
