"""NativeDraft: the Programs of a drafter as further tapes, and what runs them at the end of a step."""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence

import numpy as np

from llmx.executor import DraftRows, DraftRun, DraftShape, KVPlan, hidden_group
from llmx_cpu.lower.builder import BuiltTape
from llmx_cpu.native import DraftArgs, call, library

__all__ = ["NativeDraft"]


class NativeDraft(DraftRun):
    """tapes: of shape.programs; they must outlive the engine. layers: per group of the plan, where the bytes of its layers end in a block."""

    def __init__(self, engine: int, tapes: Sequence[BuiltTape], shape: DraftShape, plan: KVPlan, layers: Sequence[int], max_tokens: int) -> None:
        super().__init__(shape, plan, max_tokens, self._run)
        self._engine, self._tapes, self._guesses, self._last = engine, tapes, shape.guesses, len(tapes) - 1
        if shape.hidden:
            group = hidden_group(one.need.spec for one in plan.groups)
            library().llmx_engine_hidden(engine, group, layers[group], shape.hidden)

    def _run(self, rows: DraftRows) -> np.ndarray:
        following = np.zeros((len(rows.head), self._guesses), np.int32)
        arrays = (rows.slot, rows.q, rows.start, rows.tokens, rows.head, rows.behind, following)
        args = DraftArgs(len(rows.slot), len(rows.tokens), len(rows.head), min(rows.run, self._last), self._guesses, 0, *(one.ctypes.data for one in arrays))
        call("llmx_engine_draft", self._engine, C.addressof(args))
        return following
