"""How many tokens a drafter on the device guesses: as many as pay, none where none does, and some again after a while."""

from __future__ import annotations

import pytest

from llmx.draft.depth import DraftDepth
from llmx.draft.length import StepCost


def _depth(row: float, run: float, most: int = 8) -> DraftDepth:
    """A step of one row costs 10, a further row `row`, a run of the drafter `run`."""
    cost = StepCost()
    for rows in (1, 2, 4, 8, 16, 64):
        cost.set(rows, 10.0 + row * (rows - 1))
    depth = DraftDepth(most, cost)
    for rows in (1, 8):
        depth.run.set(rows, run)
    return depth


def _best(rate: float, row: float, run: float, most: int = 8) -> int:
    """By trying all: tokens per time of one request."""
    rates = {count: (1 + 0.9 * sum(rate**at for at in range(1, count + 1))) / (10 + row * count + run * count) for count in range(most + 1)}
    best = max(rates, key=lambda count: rates[count])
    return best if rates[best] > 1.02 * rates[0] else 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("row", "run"), [(0.5, 1.0), (3.0, 3.0), (0.5, 9.0), (9.0, 0.5)])
def test_as_many_as_give_the_most_tokens_per_time(rate: float, row: float, run: float) -> None:
    assert _depth(row, run).best(1, rate) == _best(rate, row, run)


def test_a_larger_batch_gets_fewer() -> None:
    depth = _depth(3.0, 1.0)
    numbers = [depth.best(rows, 0.8) for rows in (1, 4, 16, 64)]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > numbers[-1]


def test_what_does_not_pay_is_tried_for_a_fiftieth_of_the_time() -> None:
    depth = _depth(3.0, 3.0)
    tries = []
    for behind in (0, 1000, 10_000):
        asked = [depth.choose(1, 0.1, behind) for _ in range(20_000)]
        tries.append(sum(count > 0 for count in asked))
        assert asked[0] == 0 and tries[-1] / 4 * (8 + 0.2 * behind) * 3.0 <= 0.021 * 10.0 * len(asked)  # a fiftieth of the time
    assert tries[0] > tries[1] > tries[2]
    assert depth.choose(1, 0.95) > 2 and depth.choose(1, 0.1) == 0  # what pays again is made at once


def test_runs_are_measured() -> None:
    depth = _depth(0.5, 1.0)
    for _ in range(50):
        depth.observe(1, 9.0)
    assert depth.run.of(1) == pytest.approx(9.0, rel=0.1) and depth.best(1, 0.5) == 0
