"""DraftDepth: how many tokens a drafter on the device guesses at the end of a step, by what its runs cost and how often they are right."""

from __future__ import annotations

from llmx.draft.length import WORTH, StepCost, evidence_kind

__all__ = ["DEVICE_EVIDENCE", "DEVICE_KIND", "FIRST_RATE", "DraftDepth"]

DEVICE_EVIDENCE = 4  # what speaks for a guess is inside the Program, so all have one rate
DEVICE_KIND = evidence_kind(DEVICE_EVIDENCE)
FIRST_RATE = 0.9  # before anything is measured: so that something is
_SHARE = 0.02  # of the time of steps without guesses that goes into trials of some
_TRIAL = 4  # steps of a trial: the first one also catches up on what was said meanwhile
_READ = 0.2  # of a run: what a token of that takes
_MARGIN = 1.02  # a plan must promise so much more than none: figures move


class DraftDepth:
    """One engine's. cost: of steps by their rows, which others keep up to date."""

    def __init__(self, most: int, cost: StepCost) -> None:
        self._most, self._cost = most, cost
        self.run = StepCost()  # of one run of the drafter, by its rows
        self._saved, self._trial = 0.0, 0

    def observe(self, rows: int, cost: float) -> None:
        """A run took so long: the mean over those of a step."""
        if rows and cost > 0:
            if self.run.known:
                self.run.observe(rows, cost)
            else:
                self.run.set(rows, cost)

    def choose(self, rows: int, rate: float, behind: int = 0) -> int:
        """Tokens to guess for each of `rows` requests that draw a token in this step. rate: the chance that a guess is right when all before it were.

        behind: tokens of these requests that the drafter has not seen. They make a trial dear, and the next one late.
        """
        best = self.best(max(rows, 1), rate)
        if best:
            self._saved, self._trial = 0.0, 0
            return best
        if self._trial:
            self._trial -= 1
            return min(2, self._most)
        self._saved += _SHARE * self._cost.of(max(rows, 1))
        run = self.run.of(max(rows, 1)) if self.run.known else 0.0
        if self._saved > run * (2 * _TRIAL + _READ * behind):
            self._saved, self._trial = 0.0, _TRIAL
        return 0

    def best(self, rows: int, rate: float) -> int:
        """The number that gives the most tokens per time; 0 where guessing does not pay."""
        per_run = self.run.of(rows) if self.run.known else 0.0
        best, most, tokens = 0, _MARGIN * rows / self._cost.of(rows), float(rows)
        for count in range(1, self._most + 1):
            tokens += WORTH * rows * rate**count
            speed = tokens / (self._cost.of(rows * (1 + count)) + count * per_run)
            if speed > most:
                best, most = count, speed
        return best
