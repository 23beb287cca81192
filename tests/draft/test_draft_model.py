"""A draft model: what is refused, and that it is left out where it loses. That it changes no answer stands in test_same_answers.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams
from llmx.errors import ConfigError
from tests.draft.draft_models import write_draft
from tests.draft.engines import PROMPTS, open_llm


@pytest.fixture(scope="module")
def draft(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_draft(tiny, tmp_path_factory.mktemp("drafts") / "none", "none")


def test_the_draft_model_is_switched_off_where_it_loses(tiny: Path, draft: Path) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    with open_llm(tiny, "cpu", {"method": "draft_model", "model": str(draft)}) as llm:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        drafting.fixed = False
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        before, steps = llm._engine.stats().draft_tokens, llm._engine.stats().steps
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        assert llm._engine.stats().draft_tokens - before <= 60 and llm._engine.stats().steps - steps >= 120


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": None}, "model is missing"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"prompt_lookup_max": 3}, "no setting of 'draft_model'"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size is 2"),
        ({"num_speculative_tokens": 40}, "1..16"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(tiny: Path, draft: Path, change: dict[str, Any], word: str) -> None:
    spec = {"method": "draft_model", "model": str(draft), **change}
    with pytest.raises(Exception, match=word) as caught:
        LLM(model=str(tiny), platform="cpu", threads=1, max_model_len=256, num_blocks=300, speculative_config=spec)
    assert isinstance(caught.value, ConfigError) or "/nowhere" in str(spec["model"])
