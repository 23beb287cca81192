"""A plugin's drafter that brings a Program of its own: it guesses, and a hook is all it needs. Also beside adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmx import LLM, LoRARequest, SamplingParams
from tests.draft.draft_models import write_draft
from tests.hooks.vendor import install
from tests.lora.adapters import random_modules, tiny_checkpoint, write_adapter
from tests.structured.tiny import write_tiny_model

PLUGIN = """
from llmx.draft.model import DraftModel
from llmx.hooks import DrafterDef, hookimpl


class Sibling(DraftModel):
    def __init__(self, settings):
        super().__init__({"model": settings["sibling"]})


@hookimpl
def llmx_drafters(config):
    return [DrafterDef("sibling", "sibling_plugin:Sibling", ("sibling",), num_tokens=3)]
"""
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=1)
OPTIONS = {"platform": "cpu", "threads": 1, "dtype": "float32", "max_model_len": 128, "num_blocks": 60, "max_num_seqs": 4}


def test_a_plugin_brings_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "plugin", monkeypatch, "sibling-plugin", {"sibling_plugin.py": PLUGIN}, "[llmx.plugins]\nsibling = sibling_plugin\n")
    target = write_tiny_model(tmp_path)
    draft, answers = write_draft(target, tmp_path / "sibling", "all"), []
    for spec in (None, {"method": "sibling", "sibling": str(draft)}):
        with LLM(str(target), speculative_config=spec, **OPTIONS) as llm:
            if spec:
                llm._engine.scheduler.drafting.fixed = True  # type: ignore[union-attr]
            answers.append(llm.generate("abc" * 9, GREEDY, use_tqdm=False)[0].outputs[0])
    assert (answers[0].token_ids, answers[0].logprobs) == (answers[1].token_ids, answers[1].logprobs)
    assert answers[1].num_draft_tokens >= answers[1].num_accepted_tokens == 17  # of 23 behind the first, four in a step


@pytest.mark.parametrize("platform", ["cpu", "torch"])
def test_a_draft_model_beside_adapters(tmp_path: Path, platform: str) -> None:
    """The draft model knows nothing of them: it is right for the base, and for an adapter as often as the two agree."""
    weights = tiny_checkpoint(tmp_path / "model")
    write_adapter(tmp_path / "a", random_modules(weights, 0, rank=4), alpha=8.0)
    adapters, answers = [None, LoRARequest("a", 1, str(tmp_path / "a"))], []
    for spec in (None, {"method": "draft_model", "model": str(tmp_path / "model")}):
        with LLM(str(tmp_path / "model"), speculative_config=spec, enable_lora=True, **{**OPTIONS, "platform": platform}) as llm:
            if spec:
                llm._engine.scheduler.drafting.fixed = True  # type: ignore[union-attr]
            outputs = llm.generate([list(range(20, 50))] * 2, GREEDY, lora_request=adapters, use_tqdm=False)
            answers.append([output.outputs[0] for output in outputs])
    assert [one.token_ids for one in answers[0]] == [one.token_ids for one in answers[1]] and answers[0][0].token_ids != answers[0][1].token_ids
    if platform == "cpu":
        assert [one.logprobs for one in answers[0]] == [one.logprobs for one in answers[1]]
    assert answers[1][0].num_accepted_tokens == 18 and answers[1][0].num_draft_tokens <= 20  # of 23 tokens behind the first, five in a step
    assert answers[1][1].num_accepted_tokens < answers[1][1].num_draft_tokens
