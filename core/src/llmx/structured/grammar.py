"""What a structured-output backend is: the grammar it is given, the matcher it gives back, and the bitmask it fills.

A backend is chosen through the hook `llmx_structured_backends`. One thread calls `fill`; `compile` may run on several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from llmx.record import record

if TYPE_CHECKING:  # a server checks grammars without numpy
    import numpy as np

__all__ = ["WHITESPACE", "Backend", "Compiled", "GrammarSpec", "Kind", "Matcher", "TokenTable", "mask_words"]

Kind = Literal["json", "regex", "choice", "grammar", "structural_tag"]
WHITESPACE = r"[ \n\r\t]{1,8}"  # between two JSON tokens: small models would go on with it for ever


@record
class GrammarSpec:
    """A grammar, checked as far as it can be without a backend; equal specs are compiled once.

    text: json: the schema as JSON, annotations left out; choice: a JSON list of strings; structural_tag: the normal form of
    `llmx.structured.tags` as JSON; regex and grammar: as the user wrote them.
    whitespace: regex of what may stand between two JSON tokens; "" for nothing.
    """

    kind: Kind
    text: str
    whitespace: str = WHITESPACE


@record
class TokenTable:
    """The vocabulary as bytes. Special tokens are never part of text; ids without bytes are never drawn.

    tokens[i]: bytes of token i, for all ids of the model's head. digest: of all of it.
    """

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    digest: str


class Matcher(Protocol):
    """One answer's place in a grammar. Only its backend looks inside.

    A matcher may also have `fork() -> Matcher`: another one that stands where it stands and goes its own way, in microseconds. It looks ahead over
    drafts; an answer whose matcher has none brings no drafts.
    """

    @property
    def error(self) -> str | None:
        """Why it cannot go on: a token that the grammar forbids, or a limit; None while all is well."""
        ...


class Compiled(Protocol):
    """A compiled grammar; shared by all requests that have it."""

    def matcher(self) -> Matcher:
        """A new matcher at the beginning."""
        ...


class Backend(Protocol):
    """Compiles grammars for one TokenTable and fills token masks."""

    name: str

    def compile(self, spec: GrammarSpec) -> Compiled:
        """The grammar, ready for use; its first mask was computed once. Raises GrammarError: keyword, position, limit and remedy.

        What it cannot honour exactly it refuses; it never ignores a part. Long work releases the GIL.
        """
        ...

    def fill(self, matchers: Sequence[Any], tokens: Sequence[Sequence[int]], rows: Sequence[int], mask: np.ndarray) -> None:
        """Take each matcher over its new tokens, then write its mask into its row: one call that releases the GIL for the long part.

        mask: u32 [*, mask_words(V)], contiguous; bit v & 31 of word v >> 5 of row rows[i] says that matchers[i] allows token v next. Where
        the grammar may end, the EOS ids are allowed. Sets `error` of a matcher that fails; its row then has no meaning.
        """
        ...


def mask_words(vocab_size: int) -> int:
    """u32 words of a mask row."""
    return (vocab_size + 31) // 32
