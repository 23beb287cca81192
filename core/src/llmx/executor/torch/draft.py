"""TorchDraft: the Programs of a drafter, bound like the model's own, the rows of the model that they read, and what runs them at the end of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from llmx.batch import KvOp, Step
from llmx.executor.bound import BoundProgram
from llmx.executor.draft_run import DraftRun
from llmx.executor.draft_shape import HIDDEN, KEPT, DraftRows, DraftShape, hidden_group
from llmx.executor.slots import RequestRows, Slots
from llmx.executor.torch.interpreter import as_index, positions_input
from llmx.executor.torch.rows import Rows
from llmx.hooks.collectives import Communicator
from llmx.kv.spec import KVPlan
from llmx.program.ops import Program

__all__ = ["TorchDraft"]


class TorchDraft(DraftRun):
    """programs: of shape.programs, in order, each with the ids (i64) that the columns of its results stand for where they are not the ids themselves."""

    def __init__(
        self,
        programs: Sequence[tuple[Program, BoundProgram, Mapping[str, torch.Tensor]]],
        shape: DraftShape,
        plan: KVPlan,
        slots: Slots,
        device: torch.device,
        max_tokens: int,
    ) -> None:
        super().__init__(shape, plan, max_tokens, self._run)
        self._programs, self._slots, self._device = programs, slots, device
        self._block_tokens = tuple(group.need.block_tokens for group in plan.groups)
        self.communicator: Communicator | None = None
        self._group = hidden_group(group.need.spec for group in plan.groups) if shape.hidden else -1
        self._hidden = torch.zeros(0, device=device)  # [blocks, block tokens, width]
        if shape.hidden:
            self._hidden = torch.zeros((plan.groups[self._group].num_blocks, self._block_tokens[self._group], shape.hidden), device=device)
        self._ahead = self._hidden  # [R, ...]: hidden rows of the run before

    def change(self, step: Step) -> None:
        """A step begins."""
        super().change(step)
        for op, group, src, dst in step.kv_ops.tolist():
            if group == self._group and op == KvOp.COPY:
                self._hidden[dst] = self._hidden[src]

    @torch.inference_mode()
    def keep(self, requests: Sequence[RequestRows], results: Mapping[str, torch.Tensor]) -> None:
        """The model's rows were computed: keep what the drafter reads of them."""
        if KEPT in results and requests:
            block, offset = self._places((one.tables[self._group], one.start, one.end) for one in requests)
            self._hidden[block, offset] = results[KEPT][: len(block)].float()

    def _places(self, spans: object) -> tuple[torch.Tensor, torch.Tensor]:
        size, blocks, offsets = self._block_tokens[self._group], [], []
        for table, start, end in spans:  # type: ignore[attr-defined]
            positions = np.arange(start, end)
            blocks.append(table[positions // size])
            offsets.append(positions % size)
        return as_index(np.concatenate(blocks), self._device), as_index(np.concatenate(offsets), self._device)

    @torch.inference_mode()
    def _run(self, rows: DraftRows) -> np.ndarray:
        program, bound, ids = self._programs[min(rows.run, len(self._programs) - 1)]
        firsts = np.cumsum(rows.q) - rows.q
        requests = tuple(
            RequestRows(slot, first, q, start, 0, self._slots.at(slot).prompt_len, tuple(table[slot] for table in self._slots.tables))
            for slot, first, q, start in zip(rows.slot.tolist(), firsts.tolist(), rows.q.tolist(), rows.start.tolist(), strict=True)
        )
        sizes = {"T": len(rows.tokens), "N": len(rows.slot), "R": len(rows.head)}
        at = Rows(requests, self._device, sizes, self._block_tokens, communicator=self.communicator)
        inputs = {"ids": as_index(rows.tokens, self._device), "positions": positions_input(program, at.positions())}
        if HIDDEN in program.inputs:
            inputs[HIDDEN] = self._read(requests, rows.behind)
        values = bound.body(at, inputs)
        if not len(rows.head):
            return np.empty(0, np.int32)
        results = bound.head(at, values, as_index(rows.head, self._device))
        self._ahead = results.get(HIDDEN, self._ahead)
        columns = {name: result.argmax(-1) for name, result in results.items() if name.startswith("logits")}
        guesses = [ids[name][best] if name in ids else best for name, best in columns.items()]
        following: np.ndarray = torch.stack(guesses, 1).to(torch.int32).cpu().numpy()
        return following

    def _read(self, requests: Sequence[RequestRows], behind: np.ndarray) -> torch.Tensor:
        if len(behind) and behind[0] >= 0:  # a run reads rows of one kind
            return self._ahead[as_index(behind, self._device)]
        block, offset = self._places((one.tables[self._group], one.start, one.end) for one in requests)
        return self._hidden[block, offset]
