"""Hundreds of random schemas: what is accepted gives valid answers from a random model, what is not says which keyword. Writes docs/structured-output.md.

After a deliberate change: python -m pytest tests/structured --write-docs
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import jsonschema
import pytest

from llmx import LLM, SamplingParams
from llmx.errors import GrammarError
from llmx.structured.manager import Grammars
from llmx.structured.schema import ASSERTIONS, join, subschemas
from llmx.structured_params import StructuredOutputsParams
from llmx_llguidance.grammars import KEYWORDS
from tests.structured.page import PAGE, ROOT, page
from tests.structured.schemas import COUNT, keywords_in, random_schemas

LEAST = 20  # schemas for each supported keyword
SAMPLES: dict[str, Any] = {  # of every keyword that is known and cannot be enforced
    "not": {"type": "string"}, "if": {"type": "string"}, "then": {"minLength": 1}, "else": {"maximum": 3}, "contains": {"type": "null"},
    "propertyNames": {"maxLength": 3}, "unevaluatedItems": False, "unevaluatedProperties": False, "dependentSchemas": {"a": {"required": ["b"]}},
    "dependentRequired": {"a": ["b"]}, "uniqueItems": True, "minContains": 1, "maxContains": 2, "$dynamicRef": "#x",
}  # fmt: skip
_SPACE = re.compile(r'"(?:[^"\\]|\\.)*"|([ \n\r\t]+)')


@pytest.fixture(scope="module")
def enforced(grammars: Grammars) -> tuple[list[dict[str, Any]], Counter[str]]:
    """The random schemas that are accepted, and how many of them have each keyword."""
    accepted, counts = [], Counter[str]()
    for schema in random_schemas():
        try:
            grammars.get(StructuredOutputsParams(json=schema))
        except GrammarError as error:
            assert _names_a_cause(str(error)), f"{error}\n{json.dumps(schema)}"
            continue
        accepted.append(schema)
        counts.update(set(keywords_in(schema)))
    return accepted, counts


def _names_a_cause(message: str) -> bool:
    """A refusal of a schema without unknown keywords says which of its keywords cannot be honoured together."""
    return any(word in message for word in (*KEYWORDS, "Unsatisfiable", "pattern"))


def test_most_schemas_are_accepted_and_every_keyword_is_there(enforced: tuple[list[dict[str, Any]], Counter[str]]) -> None:
    accepted, counts = enforced
    assert len(accepted) >= 500, f"{len(accepted)} of {COUNT}"
    assert not {word: counts[word] for word in KEYWORDS if counts[word] < LEAST}


def _close(llm: LLM) -> dict[int, float]:
    """Biases towards what ends strings, numbers and containers, so that a random model comes to an end."""
    ids = {token: llm.tokenizer.token_bytes(token) for token in range(llm.tokenizer.vocab_size)}
    return {token: 8.0 if text in (b'"', b"}", b"]") else 4.0 for token, text in ids.items() if text in (b'"', b"}", b"]", b",", b":", b'"}', b'"]', b"}}")}


def test_answers_of_a_random_model_are_valid(tiny: LLM, enforced: tuple[list[dict[str, Any]], Counter[str]]) -> None:
    schemas, _ = enforced
    bias = _close(tiny)
    params = [
        SamplingParams(temperature=1.0, seed=index, max_tokens=200, logit_bias=bias, structured_outputs=StructuredOutputsParams(json=schema))
        for index, schema in enumerate(schemas)
    ]
    outputs = tiny.generate(["{"] * len(schemas), params, use_tqdm=False)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    ended = 0
    for schema, output in zip(schemas, outputs, strict=True):
        (answer,) = output.outputs
        assert answer.finish_reason in ("stop", "length"), answer.error
        assert all(len(found[1]) <= 8 for found in _SPACE.finditer(answer.text) if found[1]), answer.text
        if answer.finish_reason == "stop":
            ended += 1
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(answer.text))
    assert ended >= 0.95 * len(schemas), f"{ended} of {len(schemas)} came to an end"


@pytest.mark.parametrize("keyword", sorted(SAMPLES))
def test_an_unsupported_keyword_is_named_with_its_place(grammars: Grammars, keyword: str) -> None:
    rng = random.Random(keyword)
    for schema in list(random_schemas(12)):
        places = [("#", schema)]
        for pointer, value in places:
            places += [(inside, one) for inside, _, one in subschemas(value, pointer) if isinstance(one, dict)]
        pointer, place = rng.choice(places)
        place[keyword] = SAMPLES[keyword]
        with pytest.raises(GrammarError) as caught:
            grammars.get(StructuredOutputsParams(json=schema))
        assert repr(keyword) in str(caught.value) and join(pointer, keyword) in str(caught.value)


def test_the_samples_are_all_that_is_not_supported() -> None:
    from llmx.structured import schema as module

    known = {*ASSERTIONS, *module._ONE, *module._LISTS, *module._MAPS} - {"$defs", "definitions"}
    assert known - KEYWORDS == set(SAMPLES)


def test_the_page_says_what_is_tested(request: pytest.FixtureRequest, enforced: tuple[list[dict[str, Any]], Counter[str]]) -> None:
    text = page(enforced[1], sorted(SAMPLES), len(enforced[0]))
    if request.config.getoption("--write-docs"):
        (ROOT / PAGE).write_text(text)
    assert (ROOT / PAGE).read_text() == text
