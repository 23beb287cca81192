"""Any order of adds, aborts and steps: every block accounted for, every answer as if the request were alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sched.harness import FULL, SLIDING, STATE, Harness, alone

GROUPS = {"full": [FULL], "hybrid": [FULL, SLIDING], "state": [FULL, STATE], "three": [FULL, SLIDING, STATE]}


def _prompt(rng: random.Random, shared: list[int]) -> list[int]:
    start = shared[: rng.choice([0, 0, 16, 20, 32, 48])]
    return start + [rng.randrange(4, 62) for _ in range(rng.randrange(1, 60))]


def _verify(harness: Harness) -> None:
    for (name, index), tokens in harness.answers.items():
        prompt, params = harness.added[name]
        expected = alone(harness, prompt, params, index)
        end = harness.ends[name, index]
        if end in ("abort", "error"):
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected, (name, index, end)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("inflight", [1, 2])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_load(groups: str, inflight: int, seed: int) -> None:
    rng = random.Random(seed)
    harness = Harness(
        GROUPS[groups],
        num_blocks=rng.choice([14, 24, 60]),
        max_inflight=inflight,
        slots=rng.choice([3, 8]),
        max_tokens=rng.choice([16, 64]),
        policy=rng.choice(["fcfs", "priority"]),
    )
    shared = [rng.randrange(4, 62) for _ in range(48)]
    count = 0
    for _ in range(rng.randrange(20, 120)):
        move = rng.random()
        if move < 0.3:
            params = {"max_tokens": rng.randrange(1, 40), "n": rng.choice([1, 1, 1, 2, 3]), "seed": rng.randrange(1000)}
            params["temperature"] = rng.choice([0.0, 0.0, 1.0])
            params["ignore_eos"] = rng.random() < 0.5
            harness.add(f"r{count}", _prompt(rng, shared), priority=rng.randrange(3), **params)
            count += 1
        elif move < 0.36 and harness.engine._requests:
            harness.abort(rng.choice(list(harness.engine._requests)), rng.choice([-1, -1, 0, 1]))
        else:
            harness.step()
    harness.run()
    _verify(harness)


def test_thousands_of_steps() -> None:
    """One long run with a small cache: preemptions, forks, prefix hits and aborts, integrity after each of the steps."""
    rng = random.Random(7)
    harness = Harness([FULL, SLIDING], num_blocks=16, slots=6, max_tokens=48, max_inflight=2)
    shared = [rng.randrange(4, 62) for _ in range(48)]
    count = 0
    while harness.steps < 4000:
        if rng.random() < 0.2 and len(harness.engine._requests) < 12:
            harness.add(f"r{count}", _prompt(rng, shared), max_tokens=rng.randrange(1, 60), n=rng.choice([1, 1, 2, 4]), ignore_eos=True, seed=count)
            count += 1
        if rng.random() < 0.02 and harness.engine._requests:
            harness.abort(rng.choice(list(harness.engine._requests)))
        harness.step()
    harness.run()
    stats = harness.engine.stats()
    assert stats.preemptions > 50 and stats.prefix_hits > 1000 and count > 300, stats
    _verify(harness)
