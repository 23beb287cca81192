"""How many drafts are worth their rows: by what a step with more rows costs, and by how often drafts were right.

A draft that is rejected costs a row and changes nothing else. So a request brings as many drafts as give the most tokens per second: many
where a row beside others is cheap and drafts are right, none where they are not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["EVIDENCE_BOUNDS", "WORTH", "Acceptance", "StepCost", "best_lengths", "evidence_kind"]

EVIDENCE_BOUNDS = (2, 4, 8)  # equal tokens: up to 2, 4, 8, and more have rates of their own
_FIRST_RATES = (0.4, 0.6, 0.8, 0.9)  # before anything is measured
_LEARN = 0.15  # weight of one more draft in a request's rate
_LEARN_ALL = 0.02  # and in the rate that new requests begin with
_LEAST, _MOST = 0.01, 0.995
_FOLLOW, _BEND = 0.2, 0.05  # weight of one step in what all steps cost, and in what steps of its size cost beside others
WORTH = 0.9  # of a token that a draft gives, so that drafts end where they would be about even
_FURTHER = 1.5  # times the most rows measured: beyond, a step is a measurement of its own
_LEAST_ROW = 0.03  # of a step of one row: what a further row costs at least, whatever a measurement says
_PAUSE, _LONGEST_PAUSE = 4, 64  # guesses passed over after a draft that was tried although it seemed not worth it


class StepCost:
    """What a step with so many decode rows takes, in any unit: measured at some numbers of rows, straight lines between and behind them."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._costs: list[float] = []

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._rows)

    def set(self, rows: int, cost: float) -> None:
        """A measurement that stands for itself."""
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            self._costs[at] = cost
        else:
            self._rows.insert(at, rows)
            self._costs.insert(at, cost)

    def observe(self, rows: int, cost: float) -> None:
        """A step went by. All measurements follow it, as contexts grow and the machine is busy or not; the nearest one a little more."""
        if not self._rows or cost <= 0:
            return
        if rows > _FURTHER * self._rows[-1]:  # nothing near it was measured
            self.set(rows, max(cost, self._costs[-1]))
            return
        off = min(max(cost / self.of(rows), 0.5), 2.0) - 1.0
        at = min(bisect_left(self._rows, rows), len(self._rows) - 1)
        if at and rows - self._rows[at - 1] < self._rows[at] - rows:
            at -= 1
        self._costs = [one * (1.0 + _FOLLOW * off) for one in self._costs]
        self._costs[at] *= 1.0 + _BEND * off

    def of(self, rows: int) -> float:
        """The cost of a step; before anything was measured a row adds a quarter of the first one. A further row is never free."""
        known, costs = self._rows, self._costs
        if len(known) < 2:
            return (costs[0] if costs else 1.0) * (1.0 + 0.25 * (rows - 1))
        at = min(max(bisect_left(known, rows), 1), len(known) - 1)
        row = max((costs[at] - costs[at - 1]) / (known[at] - known[at - 1]), _LEAST_ROW * costs[0])
        return costs[at - 1] + row * (rows - known[at - 1])

    def pays(self, rows: int, chance: float) -> bool:
        """True when one draft more, right with this chance, gives more tokens per time beside `rows` decode rows."""
        return (rows + WORTH * chance) * self.of(rows) > rows * self.of(rows + 1)


class Acceptance:
    """Of one request, or of all: the chance that a draft is right when all before it were, by how much spoke for it."""

    def __init__(self, start: Sequence[float] = _FIRST_RATES) -> None:
        self.rates = list(start)
        self._pauses = [_PAUSE] * len(self.rates)
        self._left = [0] * len(self.rates)

    def passes_over(self, kind: int) -> bool:
        """True while guesses of this kind are not tried."""
        if not self._left[kind]:
            return False
        self._left[kind] -= 1
        return True

    def tried(self, kind: int) -> None:
        """A draft was tried against the odds: the next trial comes after a pause, twice as long each time."""
        self._left[kind] = self._pauses[kind]
        self._pauses[kind] = min(2 * self._pauses[kind], _LONGEST_PAUSE)

    def learn(self, kind: int, drafted: int, accepted: int, weight: float = _LEARN) -> None:
        """So many drafts were right; the one after them, if there was one, was wrong."""
        rate = self.rates[kind]
        for _ in range(accepted):
            rate += weight * (1.0 - rate)
        if accepted < drafted:
            rate -= weight * rate
        self.rates[kind] = min(max(rate, _LEAST), _MOST)
        if accepted:
            self._pauses[kind], self._left[kind] = _PAUSE, 0

    def learn_of_all(self, kind: int, drafted: int, accepted: int) -> None:
        """The same, for the rates that new requests begin with."""
        self.learn(kind, drafted, accepted, _LEARN_ALL)


def evidence_kind(evidence: int) -> int:
    """Which of the rates speaks for a guess."""
    return bisect_left(EVIDENCE_BOUNDS, evidence)


def best_lengths(offers: Sequence[tuple[float, int]], rows: int, cost: StepCost) -> list[int]:
    """How many drafts of each offer give the most tokens per time. offers: (chance of each draft, drafts); rows: decode rows without drafts."""
    gains = sorted(((chance**at, index) for index, (chance, count) in enumerate(offers) for at in range(1, count + 1)), reverse=True)
    best, taken, tokens = rows / cost.of(rows), 0, float(rows)
    for number, (gain, _) in enumerate(gains, 1):
        tokens += WORTH * gain
        rate = tokens / cost.of(rows + number)
        if rate > best:
            best, taken = rate, number
    lengths = [0] * len(offers)
    for _, index in gains[:taken]:
        lengths[index] += 1
    return lengths
