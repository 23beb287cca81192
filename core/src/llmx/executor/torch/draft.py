"""TorchDraft: the Program of a drafter, bound like the model's own, and its loop at the end of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from llmx.batch import Step, StepOutput
from llmx.executor.bound import BoundProgram
from llmx.executor.draft_loop import DraftLoop, DraftRows
from llmx.executor.slots import RequestRows, Slots
from llmx.executor.torch.interpreter import as_index, positions_input
from llmx.executor.torch.rows import Rows
from llmx.kv.spec import KVPlan
from llmx.program.ops import Program

__all__ = ["TorchDraft"]


class TorchDraft:
    """program, bound: of the drafter; states: names of what it writes."""

    def __init__(self, program: Program, bound: BoundProgram, states: Sequence[str], plan: KVPlan, slots: Slots, device: torch.device, max_tokens: int) -> None:
        self._program, self._bound, self._slots, self._device = program, bound, slots, device
        self._block_tokens = tuple(group.need.block_tokens for group in plan.groups)
        self._loop = DraftLoop(plan, states, max_tokens)

    def change(self, step: Step) -> None:
        """A step begins."""
        self._loop.change(step)

    def finish(self, step: Step, out: StepOutput) -> None:
        """A step was sampled: guess what follows, where it asks for that."""
        self._loop.draft(step, out, self._forward)

    @torch.inference_mode()
    def _forward(self, rows: DraftRows) -> np.ndarray:
        firsts = np.cumsum(rows.q) - rows.q
        requests = tuple(
            RequestRows(slot, first, q, start, 0, self._slots.at(slot).prompt_len, tuple(table[slot] for table in self._slots.tables))
            for slot, first, q, start in zip(rows.slot.tolist(), firsts.tolist(), rows.q.tolist(), rows.start.tolist(), strict=True)
        )
        sizes = {"T": len(rows.tokens), "N": len(rows.slot), "R": len(rows.head)}
        at = Rows(requests, self._device, sizes, self._block_tokens)
        inputs = {"ids": as_index(rows.tokens, self._device), "positions": positions_input(self._program, at.positions())}
        values = self._bound.body(at, inputs)
        if not len(rows.head):
            return np.empty(0, np.int32)
        logits = self._bound.head(at, values, as_index(rows.head, self._device))["logits"]
        following: np.ndarray = logits.argmax(-1).to(torch.int32).cpu().numpy()
        return following
