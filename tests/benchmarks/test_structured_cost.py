"""The cost of structured output is only taken from steps that ran as they should."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.structured_cost import REQUESTS, SCHEMA, measure


class FakeEngine:
    """Gives each request a token in each step, up to `tokens`; then the text is `text`."""

    def __init__(self, text: str, tokens: int) -> None:
        self.text, self.tokens, self.bound, self.steps = text, tokens, 0, 0
        self.running: list[str] = []
        self.engine = SimpleNamespace(has_work=False)

    def add_request(self, name: str, prompt: str, params: Any) -> None:
        self.running.append(name)
        self.bound += params.structured_outputs is not None

    def step(self) -> list[Any]:
        self.steps += 1
        names = self.running if self.steps <= self.tokens else self.running[1:]
        return [SimpleNamespace(request_id=name, outputs=[SimpleNamespace(text=self.text, token_ids=[0] * self.steps)]) for name in names]

    def abort_request(self, names: list[str]) -> None:
        assert names == self.running
        self.running = []


def run(text: str, tokens: int, constrained: int) -> FakeEngine:
    engine = FakeEngine(text, tokens)
    assert measure(SimpleNamespace(llm_engine=engine), 8, constrained) > 0  # type: ignore[arg-type]
    return engine


def test_half_of_the_batch_is_bound_and_as_many_steps_are_timed_as_asked_for() -> None:
    assert len(SCHEMA["properties"]) == 10
    engine = run(' {"title"', 100, REQUESTS // 2)
    assert engine.bound == REQUESTS // 2 and engine.steps == 1 + 8 and not engine.running
    assert run("Once", 100, 0).bound == 0


@pytest.mark.parametrize(("text", "tokens", "word"), [('{"title"', 5, "a step gave 31 of 32"), ("Once", 100, "left its form")])
def test_what_ends_early_or_leaves_the_form_is_no_figure(text: str, tokens: int, word: str) -> None:
    with pytest.raises(RuntimeError, match=word):
        run(text, tokens, 1)
