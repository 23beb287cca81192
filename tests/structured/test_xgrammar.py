"""The XGrammar backend enforces what it accepts, and takes over what llguidance refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from llmx.errors import GrammarError
from llmx.structured import TokenTable, mask_words
from llmx.structured.manager import Grammars
from llmx.structured_params import StructuredOutputsParams
from llmx_llguidance.backend import LLGuidanceBackend
from tests.structured.acceptor import Accepts, acceptor
from tests.structured.schemas import keywords_in, random_schemas

pytest.importorskip("xgrammar")

from llmx_xgrammar.backend import XGrammarBackend  # noqa: E402
from llmx_xgrammar.grammars import KEYWORDS  # noqa: E402


@pytest.fixture(scope="module")
def second(tiny_table: TokenTable) -> Iterator[Grammars]:
    made = Grammars([("xgrammar", XGrammarBackend)], lambda: tiny_table, timeout_s=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def takes(second: Grammars, tiny_table: TokenTable) -> Accepts:
    return acceptor(second, tiny_table)


def answer(grammars: Grammars, table: TokenTable, schema: Any, seed: int) -> str | None:
    """A random text under the schema, led to its end after 120 tokens; None when it does not come to one."""
    rng = np.random.default_rng(seed)
    ready = grammars.get(StructuredOutputsParams(json=schema))
    matcher, mask = ready.compiled.matcher(), np.zeros((1, mask_words(len(table.tokens))), np.uint32)
    drawn: list[int] = []
    closing = [index for index, token in enumerate(table.tokens) if token in (b'"', b"}", b"]", b",", b":", b'"}', b'"]')]
    for step in range(300):
        ready.backend.fill([matcher], [drawn[-1:]], [0], mask)
        assert matcher.error is None
        allowed = np.nonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little"))[0]
        if table.eos_ids[0] in allowed:
            return b"".join(table.tokens[token] for token in drawn).decode()
        preferred = [token for token in closing if token in allowed]
        drawn.append(int(rng.choice(preferred if preferred and (step > 120 or rng.random() < 0.5) else allowed)))
    return None


def test_random_schemas(second: Grammars, tiny_table: TokenTable) -> None:
    accepted, ended = [], 0
    for seed, schema in enumerate(random_schemas(3000)):
        try:
            second.get(StructuredOutputsParams(json=schema))
        except GrammarError:
            continue
        accepted.append(schema)
        text = answer(second, tiny_table, schema, seed)
        if text is not None:
            ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    seen = {keyword for schema in accepted for keyword in keywords_in(schema)}
    assert seen >= KEYWORDS and len(accepted) >= 50 and ended >= 0.9 * len(accepted), (len(accepted), ended, KEYWORDS - seen)


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "object", "required": ["zip"]}}, {"json": {"type": "string", "maxLength": 3}}, {"json": {"type": "integer", "minimum": 3}},
        {"json": {"type": "array", "uniqueItems": True}},
        {"regex": "a$b"}, {"regex": "(?=a)b"}, {"regex": "(?i)a"}, {"regex": "ab**"}, {"regex": r"(a)\1"}, {"grammar": 'start: "a"'},
        {"grammar": 'root ::= "a" c'}, {"json": {"type": ["integer", "null"]}}, {"json": {"type": "null"}, "whitespace_pattern": " "},
    ],
)  # fmt: skip
def test_what_it_would_pass_over_is_refused(second: Grammars, form: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        second.get(StructuredOutputsParams(**form))


def test_forms(takes: Accepts) -> None:
    for form, good, bad in (
        ({"choice": ["yes", 'n"\\é']}, ["yes", 'n"\\é'], ["y", "no"]),
        ({"regex": r"\d{2}-[a-c]+"}, ["12-abc"], ["1-a", "12-"]),
        ({"grammar": 'root ::= "a" b\nb ::= [0-9]+'}, ["a1"], ["a", "1"]),
        ({"json_object": True}, ["{}", '{"a":1}', "{" + " " * 8 + "}"], ["[]", "1", "{" + " " * 9 + "}"]),
        ({"json_object": True, "disable_any_whitespace": True}, ['{"a":1}'], ['{ "a":1}']),
    ):
        params = StructuredOutputsParams(**form)
        assert [takes(params, text) for text in (*good, *bad)] == [True] * len(good) + [False] * len(bad), form


def test_what_one_backend_refuses_the_next_one_takes(tiny_table: TokenTable) -> None:
    both = Grammars([("llguidance", LLGuidanceBackend), ("xgrammar", XGrammarBackend)], lambda: tiny_table, timeout_s=60)
    tag = {"type": "tag", "begin": "<g>", "content": {"type": "grammar", "grammar": 'root ::= "x"+'}, "end": "</g>"}
    form = StructuredOutputsParams(structural_tag={"type": "structural_tag", "format": tag})
    assert both.get(form).backend.name == "xgrammar"
    accepts = acceptor(both, tiny_table)
    assert accepts(form, "<g>xx</g>") and not accepts(form, "<g>y</g>")
    with pytest.raises(GrammarError, match="uniqueItems.*; xgrammar: .*uniqueItems"):
        both.get(StructuredOutputsParams(json={"type": "array", "uniqueItems": True}))
    both.close()
