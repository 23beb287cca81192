"""The cost of structured output is only taken from batches that ran as they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.structured_cost import REQUESTS, SCHEMA, measure


class FakeLLM:
    """Answers with texts of some tokens each."""

    def __init__(self, text: str, tokens: int) -> None:
        self.text, self.tokens, self.bound = text, tokens, 0

    def generate(self, prompts: list[str], params: list[Any], use_tqdm: bool) -> list[Any]:
        self.bound = sum(one.structured_outputs is not None for one in params)
        return [SimpleNamespace(outputs=[SimpleNamespace(text=self.text, token_ids=[0] * self.tokens, finish_reason="length")]) for _ in prompts]


def test_half_of_the_batch_is_bound() -> None:
    assert len(SCHEMA["properties"]) == 10
    llm = FakeLLM(' {"title"', 8)
    assert measure(llm, ["a"] * REQUESTS, 8, REQUESTS // 2) > 0 and llm.bound == REQUESTS // 2  # type: ignore[arg-type]
    assert measure(llm, ["a"] * REQUESTS, 8, 0) > 0 and llm.bound == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "tokens", "word"), [('{"title"', 7, "request 0 made 7 of 8"), ("Once", 8, "left its form")])
def test_what_ends_early_or_leaves_the_form_is_no_figure(text: str, tokens: int, word: str) -> None:
    with pytest.raises(RuntimeError, match=word):
        measure(FakeLLM(text, tokens), ["a"] * 2, 8, 1)  # type: ignore[arg-type]
