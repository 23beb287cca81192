"""A draft model changes how many steps an answer takes, and nothing else; how often it is right is built into its head."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmx import LLM, SamplingParams, StructuredOutputsParams
from llmx.engine.outputs import RequestOutput
from llmx.errors import ConfigError
from tests.draft.draft_models import write_draft
from tests.structured.tiny import write_tiny_model

K = 4
PROMPTS = ["abcdefgh" * 9, "x", "hgfedcba" * 5, "the quick brown fox", "x" * 70, "0123456789"]
ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 3, "n": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "min_tokens": 20},
    {"seed": 4, "structured_outputs": StructuredOutputsParams(regex="([a-f]{2},){5,20}")},
    {"temperature": 0.0, "prompt_logprobs": 1, "logit_bias": {100: 3.0}},
    {"seed": 5, "stop": ["ab"], "top_p": 0.9},
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafts(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafts")
    return {right: write_draft(target, folder / right, right) for right in ("all", "half", "none")}


def _llm(target: Path, platform: str = "cpu", draft: Path | None = None, **options: Any) -> LLM:
    spec = None if draft is None else {"method": "draft_model", "model": str(draft), "num_speculative_tokens": K}
    options = {"threads": 1, "max_model_len": 256, "num_blocks": 300, "max_num_seqs": 8, "dtype": "float32", **options}
    llm = LLM(model=str(target), platform=platform, speculative_config=spec, **options)
    if draft is not None:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        drafting.fixed = True
    return llm


def _params() -> list[SamplingParams]:
    return [SamplingParams(**{"max_tokens": 40, "logprobs": 1, "ignore_eos": True, **fields}) for fields in ASKED]


def _facts(outputs: list[RequestOutput], *, bits: bool = True) -> list[Any]:
    return [[(a.token_ids, a.text, a.logprobs if bits else None, a.finish_reason) for a in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def plain(target: Path) -> Iterator[list[RequestOutput]]:
    with _llm(target) as llm:
        yield llm.generate(PROMPTS, _params(), use_tqdm=False)


@pytest.mark.parametrize(
    ("right", "options"),
    [
        ("all", {}),
        ("half", {"max_num_batched_tokens": 16}),
        ("half", {"num_blocks": 14, "max_model_len": 160, "max_num_seqs": 4}),
        ("none", {"enable_prefix_caching": False}),
    ],
    ids=["plain", "chunked", "short", "cold"],
)
def test_answers_are_the_same(target: Path, drafts: dict[str, Path], plain: list[RequestOutput], right: str, options: dict[str, Any]) -> None:
    with _llm(target, draft=drafts[right], **options) as llm:
        for _ in range(2):  # the second time out of the prefix cache
            assert _facts(llm.generate(PROMPTS, _params(), use_tqdm=False)) == _facts(plain)
        stats = llm._engine.stats()
        assert stats.draft_tokens > 300
        llm._engine.kv.check_integrity([])
        if "num_blocks" in options:
            assert stats.preemptions > 0


@pytest.mark.parametrize("platform", ["cpu", "torch"])
@pytest.mark.parametrize(("right", "low", "high"), [("all", 0.99, 1.0), ("half", 0.2, 0.8), ("none", 0.0, 0.01)])
def test_as_many_are_accepted_as_the_head_is_right(target: Path, drafts: dict[str, Path], platform: str, right: str, low: float, high: float) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    with _llm(target, platform) as llm:
        wanted = llm.generate(PROMPTS, greedy, use_tqdm=False)
    with _llm(target, platform, drafts[right]) as llm:
        lengths, accepted = set(), {}
        for prompt in PROMPTS:
            llm.llm_engine.add_request(prompt, prompt, greedy)
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                lengths.add(output.outputs[0].num_accepted_tokens - accepted.get(output.request_id, 0))
                accepted[output.request_id] = output.outputs[0].num_accepted_tokens
        got = llm.generate(PROMPTS, greedy, use_tqdm=False)
        stats = llm._engine.stats()
        first = stats.accepted_per_position[0] / stats.drafts
    assert [output.outputs[0].token_ids for output in got] == [output.outputs[0].token_ids for output in wanted]
    assert low <= first <= high, stats
    assert lengths == {"all": {0, K}, "half": set(range(K + 1)), "none": {0}}[right] or (right == "all" and lengths == {0, K - 1, K})


def test_right_drafts_save_as_many_steps_as_they_can(target: Path, drafts: dict[str, Path]) -> None:
    """Alone, from the cache, in chunks and after a while without drafts: the pages of the draft model hold what they should."""
    greedy = SamplingParams(temperature=0.0, max_tokens=41, ignore_eos=True)
    with _llm(target, draft=drafts["all"], max_num_batched_tokens=32) as llm:
        drafting = llm._engine.scheduler.drafting
        assert drafting is not None
        for prompt in PROMPTS:
            for _ in range(2):
                before, (output,) = llm._engine.stats().steps, llm.generate(prompt, greedy, use_tqdm=False)
                chunks = -(-max(len(output.prompt_token_ids) - output.num_cached_tokens, 1) // 32)
                assert llm._engine.stats().steps - before == chunks + 8, prompt  # 40 tokens, five in a step
        prompt = "abc" * 20
        llm.llm_engine.add_request("late", prompt, SamplingParams(temperature=0.0, max_tokens=81, ignore_eos=True))
        drafting.enabled = False
        for _ in range(22):
            llm.llm_engine.step()
        drafting.enabled = True
        left = 0
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            left += 1
        assert left <= 15  # three steps catch up, then there are five tokens in each


def test_drafting_switched_at_random(target: Path, drafts: dict[str, Path], plain: list[RequestOutput]) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        with _llm(target, draft=drafts[rng.choice(["all", "half"])], max_num_batched_tokens=rng.choice([16, 64]), num_blocks=rng.choice([22, 200])) as llm:
            drafting = llm._engine.scheduler.drafting
            assert drafting is not None
            order = list(range(len(PROMPTS)))
            rng.shuffle(order)
            done: dict[str, RequestOutput] = {}
            waiting = list(order)
            while waiting or llm.llm_engine.has_unfinished_requests():
                if waiting and rng.random() < 0.4:
                    index = waiting.pop()
                    llm.llm_engine.add_request(str(index), PROMPTS[index], _params()[index])
                drafting.enabled = rng.random() < 0.6
                done |= {output.request_id: output for output in llm.llm_engine.step() if output.finished}
            assert _facts([done[str(index)] for index in range(len(PROMPTS))]) == _facts(plain)


def test_the_draft_model_is_switched_off_where_it_loses(target: Path, drafts: dict[str, Path]) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    with _llm(target, draft=drafts["none"]) as llm:
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
def test_what_is_wrong_is_named(target: Path, drafts: dict[str, Path], change: dict[str, Any], word: str) -> None:
    spec = {"method": "draft_model", "model": str(drafts["all"]), **change}
    with pytest.raises(Exception, match=word) as caught:
        LLM(model=str(target), platform="cpu", threads=1, max_model_len=256, num_blocks=300, speculative_config=spec)
    assert isinstance(caught.value, ConfigError) or "/nowhere" in str(spec["model"])


def test_another_vocabulary_is_refused(target: Path, drafts: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="384 ids instead of 49152"):
        LLM(platform="cpu", threads=1, speculative_config={"method": "draft_model", "model": str(drafts["all"])})
