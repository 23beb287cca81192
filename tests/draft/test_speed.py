"""What drafting saves where an answer repeats its prompt, and what it costs where none does. Processor time, methods in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.drafting import METHODS, TASKS, TEXT, compare, repeated

from llmx import LLM

NEW = 400
ENGINE = {"platform": "cpu", "threads": 1, "max_model_len": 2048, "num_blocks": 900, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, LLM]]:
    made = {name: LLM(speculative_config=spec, **ENGINE) for name, spec in METHODS.items()}
    yield made
    for llm in made.values():
        llm.close()


def test_a_text_that_is_repeated_takes_half_the_time(engines: dict[str, LLM]) -> None:
    best = compare(engines, TASKS["rewrite a text"], 1, NEW, 1)
    given = engines["off"].tokenizer.encode(TEXT)
    assert len(given) >= 400 and repeated(given, best["off"].tokens[0]) >= 0.7
    times = {name: best["off"].seconds / one.seconds for name, one in best.items()}
    assert best["off"].steps >= NEW > 3 * best["ngram"].steps
    assert max(times["ngram"], times["suffix"]) >= 1.8, times  # 2.5 to 3 on a quiet machine


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_prose_that_repeats_nothing_is_no_slower(engines: dict[str, LLM], batch: int) -> None:
    for title in ("story, temperature 1", "essay, temperature 0.8"):
        best = compare(engines, TASKS[title], batch, 96 if batch == 1 else 48, 5)
        times = {name: best["off"].seconds / one.seconds for name, one in best.items()}
        assert min(times.values()) >= 0.9, (title, times)  # 0.97 is the goal; on a busy machine single figures move by a tenth
