"""Structured output: grammars and what a backend for them must offer. The public face for backends."""

from llmx.structured.grammar import WHITESPACE, Backend, Compiled, GrammarSpec, Kind, Matcher, TokenTable, mask_words
from llmx.structured.schema import subschemas, unsupported_keyword
from llmx.structured.tags import Tag, Tags, tags_from

__all__ = [
    "WHITESPACE",
    "Backend",
    "Compiled",
    "GrammarSpec",
    "Kind",
    "Matcher",
    "Tag",
    "Tags",
    "TokenTable",
    "mask_words",
    "subschemas",
    "tags_from",
    "unsupported_keyword",
]
