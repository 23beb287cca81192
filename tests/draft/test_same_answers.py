"""Whatever a drafter on the device guesses, answers are those without it, bit for bit; only the number of steps changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmx import SamplingParams
from llmx.engine.outputs import RequestOutput
from tests.draft.cases import make_built, make_random
from tests.draft.engines import PROMPTS, facts, open_llm, params

Plain = Callable[[Path], list[Any]]
SHORT = {"num_blocks": 14, "max_model_len": 160, "max_num_seqs": 4}


def _spec(case: str, tiny: Path, moody: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """(target, speculative_config)"""
    if case in ("medusa", "pard") or case.startswith("mlp_speculator"):
        return tiny, make_random(case, tiny, folder)[0]
    target = tiny if case.startswith("draft_model") else moody
    return target, make_built(case, target, folder)


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *((f"{method}-all", {}) for method in ("draft_model", "eagle", "eagle3")),
        *((f"{method}-half", options) for method in ("draft_model", "eagle", "eagle3") for options in ({"max_num_batched_tokens": 16}, SHORT)),
        *((f"{method}-none", {"enable_prefix_caching": False}) for method in ("draft_model", "eagle")),
        *((method, {"max_num_batched_tokens": 16, "num_blocks": 30, "max_model_len": 160}) for method in ("medusa", "mlp_speculator", "pard")),
        *((method, {}) for method in ("medusa", "mlp_speculator-tied", "pard")),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(one) or "plain",
)
def test_answers_are_the_same(case: str, options: dict[str, Any], tiny: Path, moody: Path, plain: Plain, tmp_path: Path) -> None:
    target, spec = _spec(case, tiny, moody, tmp_path)
    options = {**options, "num_blocks": 12} if options is SHORT and case.startswith("eagle") else options
    with open_llm(target, "cpu", spec, **options) as llm:
        for _ in range(2):  # the second time out of the prefix cache
            assert facts(llm.generate(PROMPTS, params(), use_tqdm=False)) == plain(target)
        stats = llm._engine.stats()
        assert stats.draft_tokens > 200
        llm._engine.kv.check_integrity([])
        if options.get("num_blocks", 99) < 15:
            assert stats.preemptions > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_drafting_switched_at_random(method: str, tiny: Path, moody: Path, plain: Plain, tmp_path: Path) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        target, spec = _spec(f"{method}-{('all', 'half')[seed]}", tiny, moody, tmp_path)
        with open_llm(target, "cpu", spec, max_num_batched_tokens=rng.choice([16, 64]), num_blocks=rng.choice([22, 200])) as llm:
            drafting = llm._engine.scheduler.drafting
            assert drafting is not None
            waiting, done = list(range(len(PROMPTS))), dict[str, RequestOutput]()
            rng.shuffle(waiting)
            while waiting or llm.llm_engine.has_unfinished_requests():
                if waiting and rng.random() < 0.4:
                    index = waiting.pop()
                    llm.llm_engine.add_request(str(index), PROMPTS[index], params()[index])
                drafting.enabled = rng.random() < 0.6
                done |= {output.request_id: output for output in llm.llm_engine.step() if output.finished}
            assert facts([done[str(index)] for index in range(len(PROMPTS))]) == plain(target)


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_right_drafts_save_as_many_steps_as_they_can(method: str, tiny: Path, moody: Path, tmp_path: Path) -> None:
    """Alone, from the cache, in chunks and after a while without drafts: the drafter's pages hold what they should."""
    target, spec = _spec(f"{method}-all", tiny, moody, tmp_path)
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with open_llm(target, "cpu", spec, max_num_batched_tokens=32) as llm:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        for prompt in PROMPTS:
            for _ in range(2):
                before, (output,) = llm._engine.stats().steps, llm.generate(prompt, greedy, use_tqdm=False)
                chunks = -(-max(len(output.prompt_token_ids) - output.num_cached_tokens, 1) // 32)
                assert llm._engine.stats().steps - before == chunks + 8, prompt  # 40 tokens, five in a step
        llm.llm_engine.add_request("late", "+" + "abc" * 20, SamplingParams(temperature=0.0, max_tokens=81, ignore_eos=True))
        drafting.enabled = False
        for _ in range(22):
            llm.llm_engine.step()
        drafting.enabled = True
        left = 0
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            left += 1
        assert left <= 15  # three steps catch up, then there are five tokens in each
