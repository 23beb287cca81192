"""Draft lengths against the best of all choices, and what is learnt on the way."""

from __future__ import annotations

import itertools
import random

import pytest

from llmx.draft.length import WORTH, Acceptance, StepCost, best_lengths, evidence_kind


def _cost(first: float, row: float) -> StepCost:
    cost = StepCost()
    for rows in (1, 2, 8, 16):
        cost.set(rows, first + row * rows)
    return cost


def _rate(offers: list[tuple[float, int]], lengths: tuple[int, ...], rows: int, cost: StepCost) -> float:
    tokens = rows + WORTH * sum(chance**at for (chance, _), length in zip(offers, lengths, strict=True) for at in range(1, length + 1))
    return tokens / cost.of(rows + sum(lengths))


def test_the_lengths_are_the_best_of_all() -> None:
    rng = random.Random(5)
    for _ in range(200):
        offers = [(rng.uniform(0.05, 0.99), rng.randrange(1, 5)) for _ in range(rng.randrange(1, 4))]
        rows, cost = len(offers) + rng.randrange(3), _cost(1.0, rng.uniform(0.02, 2.0))
        best = max(_rate(offers, each, rows, cost) for each in itertools.product(*(range(count + 1) for _, count in offers)))
        assert _rate(offers, tuple(best_lengths(offers, rows, cost)), rows, cost) == pytest.approx(best)


PAYS = [(9.0, 0.1, 1, True), (1.0, 1.0, 1, True), (0.0, 1.0, 1, False), (1.0, 1.0, 64, False), (9.0, 0.1, 64, True)]


@pytest.mark.parametrize(("first", "row", "rows", "pays"), PAYS)
def test_drafts_pay_where_rows_are_cheap(first: float, row: float, rows: int, pays: bool) -> None:
    """In a large batch a row costs about what a whole request's step does, so drafts stop there."""
    assert _cost(first, row).pays(rows, 0.98) == pays
    assert bool(sum(best_lengths([(0.98, 4)], rows, _cost(first, row)))) == pays


def test_costs_follow_the_machine_and_keep_their_shape() -> None:
    cost = _cost(10.0, 1.0)
    shape = cost.of(8) / cost.of(1)
    for _ in range(100):
        cost.observe(1, 40.0)  # everything takes four times as long, and only steps of one row are seen
    assert cost.of(1) == pytest.approx(40.0, rel=0.05) and cost.of(8) / cost.of(1) == pytest.approx(shape, rel=0.3)
    for _ in range(300):  # a wrong measurement is mended by what is seen
        cost.observe(1, 10.0)
        cost.observe(8, 30.0)
    assert cost.of(8) / cost.of(1) == pytest.approx(3.0, rel=0.15)


def test_a_step_far_beyond_what_was_measured_is_a_measurement() -> None:
    cost = StepCost()
    cost.set(1, 10.0)
    cost.set(2, 10.0)
    assert cost.pays(8, 0.98)
    cost.observe(8, 80.0)
    assert cost.of(8) == 80.0 and not cost.pays(8, 0.98)


def test_a_row_is_never_free() -> None:
    cost = StepCost()
    cost.set(1, 80.0)
    cost.set(2, 76.0)  # the machine was busy during the first
    assert cost.of(3) > cost.of(2) > cost.of(1)


def test_acceptance_is_learnt_by_what_spoke_for_the_draft() -> None:
    one = Acceptance()
    for _ in range(60):
        one.learn(evidence_kind(2), 4, 0)
        one.learn(evidence_kind(20), 4, 4)
    assert one.rates[0] < 0.05 and one.rates[3] > 0.98 and one.rates[1:3] == Acceptance().rates[1:3]
    assert [evidence_kind(tokens) for tokens in (1, 2, 3, 4, 5, 8, 9, 32)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_trials_against_the_odds_become_rare_until_one_is_right() -> None:
    one, trials = Acceptance(), []
    for step in range(400):
        if not one.passes_over(0):
            one.tried(0)
            one.learn(0, 1, 0)
            trials.append(step)
    assert len(trials) < 12 and trials[-1] - trials[-2] > 60
    while one.passes_over(0):
        pass
    one.learn(0, 1, 1)
    assert not one.passes_over(0)
