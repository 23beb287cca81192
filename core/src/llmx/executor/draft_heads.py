"""HeadLoop: guesses of Programs without pages, which read a hidden row of the model and the token that was drawn behind it."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from llmx.batch import Step, StepOutput
from llmx.executor.draft_shape import DraftRows, Forward

__all__ = ["HeadLoop"]


class HeadLoop:
    """Takes DraftLoop's place. Nothing is kept from step to step: the row behind each drawn token is all that these Programs read.

    programs: how many there are; each run has its own. guesses: tokens that a run gives.
    """

    def __init__(self, programs: int, guesses: int) -> None:
        self._programs, self._guesses = programs, guesses

    def change(self, step: Step) -> None:
        """A step begins."""

    def draft(self, step: Step, out: StepOutput, forward: Forward) -> None:
        """Where the step asks for guesses, write out.drafts and the time they took. A fork has no row of its own in the step in which it joins."""
        if not step.draft_k:
            return
        began = perf_counter_ns()
        out.drafts = drafts = np.full((len(step.samples), step.draft_k), -1, np.int32)
        first = np.cumsum(step.q) - step.q
        place = {slot: start - at for slot, start, at in zip(step.slot.tolist(), step.start.tolist(), first.tolist(), strict=True)}
        drawn = [
            (index, slot, int(step.head[row + count - 1]) + place[slot], int(out.tokens[index, count - 1]))
            for index, ((slot, row, _), count) in enumerate(zip(step.samples.tolist(), out.count.tolist(), strict=True))
            if count and slot in place
        ]
        if drawn:
            index, slots, positions, tokens = (np.array(column, np.int32) for column in zip(*drawn, strict=True))
            self._run(drafts, index, slots, positions, tokens, forward)
        out.t_us = (out.t_us[0], out.t_us[1], (perf_counter_ns() - began) // 1000)

    def _run(self, drafts: np.ndarray, index: np.ndarray, slots: np.ndarray, positions: np.ndarray, tokens: np.ndarray, forward: Forward) -> None:
        one, head = np.ones(len(slots), np.int32), np.arange(len(slots), dtype=np.int32)
        behind = np.full(len(slots), -1, np.int32)
        for run in range(self._programs):
            done = run * self._guesses
            if done >= drafts.shape[1]:
                break
            given = forward(DraftRows(slots, one, positions + done, tokens, head, behind, run)).reshape(len(slots), self._guesses)
            drafts[index, done : done + self._guesses] = given[:, : drafts.shape[1] - done]
            tokens, behind = np.ascontiguousarray(given[:, -1]), head
