"""Drafts change how many steps an answer takes, and nothing else: on the null executor, every invariant checked after each step."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmx.draft.drafter import Drafter
from tests.sched.harness import EOS, FULL, SLIDING, STATE, Guesses, Harness, alone

GROUPS = {"full": [FULL], "hybrid": [FULL, SLIDING], "state": [FULL, STATE], "three": [FULL, SLIDING, STATE]}
PROMPT = [5, 9, 12, 40, 33, 7]


def _drafting(harness: Harness):  # type: ignore[no-untyped-def]
    drafting = harness.engine.scheduler.drafting
    assert drafting is not None
    return drafting


def _drafter(harness: Harness) -> Guesses:
    drafter: Drafter = _drafting(harness)._drafter
    assert isinstance(drafter, Guesses)
    return drafter


def _verify(harness: Harness) -> None:
    for (name, index), tokens in harness.answers.items():
        prompt, params = harness.added[name]
        expected = alone(harness, prompt, params, index)
        if harness.ends[name, index] == "abort":
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected, (name, index, harness.ends[name, index])
    assert _drafter(harness).open == 0, "a proposer outlives its request"
    assert not _drafting(harness)._tracks


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("inflight", [1, 2])
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_load_with_drafting_switched_at_random(groups: str, inflight: int, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(
        GROUPS[groups],
        num_blocks=rng.choice([14, 24, 60]),
        max_inflight=inflight,
        slots=rng.choice([3, 8]),
        max_tokens=rng.choice([16, 64]),
        drafts=rng.choice([0.0, 0.5, 0.9, 1.0]),
    )
    shared, count = [rng.randrange(4, 62) for _ in range(48)], 0
    for _ in range(rng.randrange(20, 80)):
        move = rng.random()
        if move < 0.25:
            prompt = shared[: rng.choice([0, 16, 20, 48])] + [rng.randrange(4, 62) for _ in range(rng.randrange(1, 40))]
            harness.add(
                f"r{count}",
                prompt,
                max_tokens=rng.randrange(10, 40),
                n=rng.choice([1, 1, 2, 3]),
                seed=rng.randrange(1000),
                temperature=rng.choice([0.0, 0.0, 1.0]),
                ignore_eos=rng.random() < 0.5,
                repetition_penalty=rng.choice([1.0, 1.0, 1.4]),
                min_tokens=rng.choice([0, 0, 10]),
                logit_bias=rng.choice([None, {EOS: 6.5}]),
            )
            count += 1
        elif move < 0.3 and harness.engine._requests:
            harness.abort(rng.choice(list(harness.engine._requests)), rng.choice([-1, 0, 1]))
        else:
            if rng.random() < 0.2:
                _drafting(harness).enabled = rng.random() < 0.7
                _drafting(harness).fixed = rng.random() < 0.7
            harness.step()
    harness.run()
    _verify(harness)


@pytest.mark.parametrize(("right", "steps"), [(1.0, 1 + 4), (0.0, 24)])
def test_right_drafts_save_steps_and_wrong_ones_cost_none(right: float, steps: int) -> None:
    harness = Harness([FULL], drafts=right)
    harness.add("a", PROMPT, max_tokens=24, ignore_eos=True, seed=1)
    harness.run()
    _verify(harness)
    assert harness.steps == steps  # the prompt's step gives one token, each other 1 + 5 of the 23 that are left
    stats = harness.engine.stats()
    assert stats.accepted_tokens == (19 if right else 0) and stats.draft_tokens >= stats.accepted_tokens
    assert (stats.draft_tokens > 0) and stats.accepted_tokens == sum(stats.accepted_per_position)


def test_every_accepted_length_occurs() -> None:
    harness, lengths = Harness([FULL], drafts=0.6), set()
    for seed in range(12):
        harness.add(f"r{seed}", [*PROMPT, 4 + seed], max_tokens=40, ignore_eos=True, seed=seed)
    while harness.engine.has_work:
        before = sum(len(tokens) for tokens in harness.answers.values())
        known = {key: len(tokens) for key, tokens in harness.answers.items()}
        harness.step()
        lengths |= {len(tokens) - known[key] for key, tokens in harness.answers.items()}
        assert sum(len(tokens) for tokens in harness.answers.values()) >= before
    assert lengths == {0, 1, 2, 3, 4, 5, 6}
    _verify(harness)


def test_drafts_preempt_nobody_and_their_blocks_come_back() -> None:
    """A cache that two requests fill to the last block: without drafts nothing is preempted, so with wrong ones nothing may be."""
    counts = []
    for drafts in (None, 0.0):
        harness = Harness([FULL], num_blocks=7, max_len=96, drafts=drafts, nan=False)
        harness.add("a", PROMPT, max_tokens=42, ignore_eos=True)  # 48 tokens: three blocks
        harness.add("b", [*PROMPT, 8], max_tokens=41, ignore_eos=True)
        most = 0
        while harness.engine.has_work:
            harness.step()
            most = max(most, harness.engine.kv.blocks_held)
            if drafts is not None and not harness.engine._in_flight:
                for request in harness.live():
                    assert len(request.tables[0]) <= -(-max(request.num_computed, 1) // 16) or request.in_prefill
        counts.append((harness.engine.stats().preemptions, most))
    assert counts[0] == counts[1] == (0, 6)


def test_no_draft_goes_past_a_stop_token_or_the_longest_answer() -> None:
    harness = Harness([FULL], drafts=1.0, nan=False)
    expected = alone(harness, PROMPT, harness_params(max_tokens=30, ignore_eos=True))
    stop = expected[8]
    assert stop not in expected[:8]
    harness.add("stopped", PROMPT, max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
    harness.add("cut", PROMPT, max_tokens=10, ignore_eos=True)
    seen = []
    real = harness.executor.submit
    harness.executor.submit = lambda step: (seen.append(step), real(step))[1]  # type: ignore[method-assign]
    harness.run()
    assert harness.answers["stopped", 0] == expected[:9] and harness.answers["cut", 0] == expected[:10]
    assert all(stop not in step.tokens.tolist()[len(PROMPT) :] for step in seen if step.num_requests == 1)
    longest = max(int(start + q) for step in seen for start, q in zip(step.start, step.q, strict=True))
    assert longest <= len(PROMPT) + 9  # ten tokens, the last of which needs no KV


def harness_params(**params: object):  # type: ignore[no-untyped-def]
    from llmx.sampling_params import SamplingParams

    return SamplingParams(**{"temperature": 0.0, **params})  # type: ignore[arg-type]


def test_usage_of_the_prefix_cache_is_the_same() -> None:
    """What an answer leaves in the prefix cache does not depend on how many steps it took."""
    cached = []
    for drafts in (None, 1.0):
        harness = Harness([FULL], drafts=drafts, nan=False, num_blocks=60)
        harness.add("a", PROMPT, max_tokens=43, ignore_eos=True)  # 48 of 49 tokens have KV: three full blocks
        harness.run()
        harness.add("b", [*PROMPT, *harness.answers["a", 0]], max_tokens=1)
        harness.run()
        cached.append(next(item.num_cached for item in harness.news if item.id == "b" and item.num_cached))
    assert cached == [48, 48]


def test_a_failed_row_behind_a_draft_does_not_take_the_tokens_before_it() -> None:
    """Token 63 makes the row after it fail: with drafts the same tokens go out as without."""
    for seed in range(40):
        ends = []
        for drafts in (None, 1.0):
            harness = Harness([FULL], drafts=drafts)
            harness.add("a", [5, 6, seed + 4], max_tokens=30, ignore_eos=True, logit_bias={63: 3.5}, seed=seed)
            harness.run()
            ends.append((harness.answers["a", 0], harness.ends["a", 0]))
        assert ends[0] == ends[1]
        if ends[0][1] == "error" and len(ends[0][0]) > 6:
            return
    pytest.fail("no seed failed late enough to be of use")
