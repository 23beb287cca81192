"""A repeated step is the step that would have been laid out anew, and most steps of plain decoding are repeated."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from llmx.batch import Step
from llmx.sched.repeat import Repeat
from tests.sched.harness import FULL, SLIDING, STATE, Harness


class Recorded(Harness):
    """A harness that keeps its Steps. repeat False: each is laid out anew."""

    def __init__(self, *args: Any, repeat: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.submitted: list[Step] = []
        submit = self.executor.submit
        self.executor.submit = lambda step: (self.submitted.append(step), submit(step))[1]  # type: ignore[method-assign]
        if not repeat:
            self.engine.scheduler._repeat.remember = lambda *_: None  # type: ignore[method-assign]


def _same(one: Step, other: Step) -> bool:
    for item in fields(Step):
        a, b = getattr(one, item.name), getattr(other, item.name)
        if item.name == "new_blocks":
            equal = len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        elif isinstance(a, np.ndarray):
            equal = a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
        else:
            equal = item.name in ("joined", "want") or a == b  # these hold arrays; both are empty or the same objects where a step is repeated
        if not equal:
            return False
    return True


@pytest.mark.parametrize("groups", [[FULL], [FULL, SLIDING], [FULL, STATE]], ids=["full", "hybrid", "state"])
@pytest.mark.parametrize("inflight", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_steps_are_those_of_a_scheduler_that_repeats_none(groups: list[Any], inflight: int, seed: int) -> None:
    pair = []
    for repeat in (True, False):
        rng = random.Random(seed)
        harness = Recorded(groups, repeat=repeat, num_blocks=rng.choice([14, 40]), max_inflight=inflight, slots=4, max_tokens=32)
        for turn in range(60):
            if rng.random() < 0.12:
                extra = {"logprobs": 2} if rng.random() < 0.3 else {}
                n = rng.choice([1, 1, 2])
                prompt = [rng.randrange(4, 62) for _ in range(rng.randrange(1, 40))]
                harness.add(f"r{turn}", prompt, max_tokens=rng.randrange(1, 40), n=n, seed=turn, temperature=1.0, ignore_eos=rng.random() < 0.7, **extra)
            elif rng.random() < 0.03 and harness.engine._requests:
                harness.abort(sorted(harness.engine._requests)[0])
            else:
                harness.step()
        harness.run()
        pair.append(harness)
    repeated, anew = pair
    assert repeated.answers == anew.answers and repeated.ends == anew.ends
    assert len(repeated.submitted) == len(anew.submitted)
    assert all(map(_same, repeated.submitted, anew.submitted))


def test_plain_decoding_keeps_the_arrays_of_the_step_before() -> None:
    harness = Recorded([FULL], num_blocks=40, nan=False)
    for name in "abc":
        harness.add(name, list(range(4, 20)), max_tokens=30, ignore_eos=True)
    harness.run()
    pairs = zip(harness.submitted, harness.submitted[1:], strict=False)
    kept = sum(one.slot is two.slot and one.head is two.head and one.samples is two.samples for one, two in pairs)
    assert len(harness.submitted) == 30 and kept == 28  # the prompt's step, the first of decoding, and then the same rows to the end


def test_a_step_without_rows_is_not_repeated() -> None:
    repeat = Repeat(Harness([FULL]).engine.kv)
    assert repeat.next(0) is None
