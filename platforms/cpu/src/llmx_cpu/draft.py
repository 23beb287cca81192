"""NativeDraft: the Program of a drafter as a second tape, and its loop at the end of a step."""

from __future__ import annotations

import ctypes as C

import numpy as np

from llmx.executor import DRAFT, DraftLoop, DraftRows, KVPlan, ModelBundle, Step, StepOutput
from llmx_cpu.lower.builder import BuiltTape
from llmx_cpu.native import DraftArgs, call

__all__ = ["NativeDraft"]


class NativeDraft:
    """tape: of the Program "draft"; it must outlive the engine."""

    def __init__(self, engine: int, tape: BuiltTape) -> None:
        self._engine, self._tape = engine, tape
        self._loop: DraftLoop | None = None
        call("llmx_engine_draft_tape", engine, C.addressof(tape.struct))

    def allocate(self, plan: KVPlan, bundle: ModelBundle, max_tokens: int) -> None:
        """The pages are there."""
        states = [state.name for state in bundle.model.states.values() if state.owner == DRAFT]
        self._loop = DraftLoop(plan, states, max_tokens)

    def change(self, step: Step) -> None:
        """A step begins."""
        if self._loop is not None:
            self._loop.change(step)

    def finish(self, step: Step, out: StepOutput) -> None:
        """A step was sampled: guess what follows, where it asks for that."""
        if self._loop is not None:
            self._loop.draft(step, out, self._forward)

    def _forward(self, rows: DraftRows) -> np.ndarray:
        following = np.zeros(len(rows.head), np.int32)
        arrays = (rows.slot, rows.q, rows.start, rows.tokens, rows.head, following)
        args = DraftArgs(len(rows.slot), len(rows.tokens), len(rows.head), 0, *(array.ctypes.data for array in arrays))
        call("llmx_engine_draft", self._engine, C.addressof(args))
        return following
