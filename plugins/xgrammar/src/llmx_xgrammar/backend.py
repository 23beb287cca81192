"""XGrammarBackend: the Backend protocol over XGrammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgrammar

from llmx.errors import GrammarError
from llmx.structured import GrammarSpec, TokenTable, mask_words
from llmx_xgrammar.grammars import choices_ebnf, refusal, structural_tag, whitespace_limit

__all__ = ["XGrammarBackend"]

_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")  # time and source line before XGrammar's messages
_CACHE_BYTES = 256 << 20  # of XGrammar's own cache of rules


class _Matcher:
    """XGrammar's matcher, and why it stopped."""

    __slots__ = ("error", "inner")

    def __init__(self, inner: xgrammar.GrammarMatcher) -> None:
        self.inner = inner
        self.error: str | None = None

    def fork(self) -> _Matcher:
        return _Matcher(self.inner.fork())


class _Compiled:
    """A compiled grammar."""

    __slots__ = ("_grammar",)

    def __init__(self, grammar: xgrammar.CompiledGrammar) -> None:
        self._grammar = grammar

    def matcher(self) -> _Matcher:
        return _Matcher(xgrammar.GrammarMatcher(self._grammar))


class XGrammarBackend:
    """Compiles for one vocabulary, on one thread."""

    name = "xgrammar"

    def __init__(self, table: TokenTable) -> None:
        if not table.eos_ids:
            raise GrammarError("the model has no end-of-sequence token: an answer under a grammar could not end")
        # Special tokens and ids without bytes are of no text: an empty entry is never allowed.
        vocabulary = [b"" if index in table.special_ids else token for index, token in enumerate(table.tokens)]
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=list(table.eos_ids))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=_CACHE_BYTES)
        self._words = mask_words(len(vocabulary))

    def compile(self, spec: GrammarSpec) -> _Compiled:
        """The compiled grammar; see llmx.structured.Backend."""
        why = refusal(spec)
        if why is not None:
            raise GrammarError(why)
        try:
            compiled = _Compiled(self._compile(spec))
        except GrammarError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            raise GrammarError(_PLACE.sub("", str(error).strip().split("\n", 1)[0])[:300]) from error
        mask = np.zeros((1, self._words), np.int32)
        compiled.matcher().inner.fill_next_token_bitmask(mask, 0)
        if not mask.any():
            raise GrammarError("nothing can be written: the grammar allows no first token")
        return compiled

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        match spec.kind:
            case "json":
                limit = whitespace_limit(spec.whitespace)
                separators = None if limit else (",", ":")
                return self._compiler.compile_json_schema(
                    spec.text, any_whitespace=bool(limit), separators=separators, max_whitespace_cnt=limit, strict_mode=False
                )
            case "regex":
                return self._compiler.compile_regex(spec.text)
            case "choice":
                return self._compiler.compile_grammar(choices_ebnf(spec.text))
            case "grammar":
                return self._compiler.compile_grammar(spec.text)
            case _:
                return self._compiler.compile_structural_tag(structural_tag(spec.text))

    def fill(self, matchers: Sequence[_Matcher], tokens: Sequence[Sequence[int]], rows: Sequence[int], mask: np.ndarray) -> None:
        """Masks of one step; see llmx.structured.Backend."""
        words: Any = mask.view(np.int32)
        for matcher, new, row in zip(matchers, tokens, rows, strict=True):
            taken = next((index for index, token in enumerate(new) if not matcher.inner.accept_token(token)), None)
            if taken is not None:
                matcher.error = f"token {new[taken]} is not allowed by the grammar"
            elif matcher.error is None:
                words[row] = -1
                matcher.inner.fill_next_token_bitmask(words, row)
