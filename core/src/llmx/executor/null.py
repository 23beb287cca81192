"""NullExecutor: the whole Executor protocol without a model, and a witness of the KV cache.

Its "model" draws the next token from a hash of the request's history; its pages keep (token, position) in every kv slot and
a running hash in every recurrent state. Before a row is computed the pages it would read must spell the request's history;
if not, `KVFault` says which kv slot is wrong. So a mistake in block accounting cannot give a plausible answer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmx.batch import Joined, Status, Step, StepOutput
from llmx.executor.base import Control, Late, Limits, Progress, Reply, Ticket
from llmx.executor.null_pages import KVFault, NullPages
from llmx.executor.null_sampling import NullModel, SlotView, sample_step, score_step
from llmx.kv.spec import GroupNeed, KVPlan

__all__ = ["KVFault", "NullExecutor"]


@dataclass(slots=True)
class _Slot:
    """What is kept of one running request."""

    view: SlotView
    drafted: bool = False  # stale draft rows may lie past the end
    failed: bool = False  # an earlier step failed it: rows in flight are ignored


@dataclass(slots=True)
class _Pending:
    """A submitted step. It runs once the steps before it are sampled; a late one is sampled at `release`."""

    step: Step
    status: np.ndarray | None = None  # set by the forward
    views: list[SlotView] = field(default_factory=list)
    late: Late | None = None
    done: StepOutput | None = None


@dataclass(slots=True)
class _State:
    slots: dict[int, _Slot] = field(default_factory=dict)
    queue: deque[_Pending] = field(default_factory=deque)
    kv_done: list[int] = field(default_factory=list)
    adapters: set[int] = field(default_factory=set)  # LoRA slots that hold one


class NullExecutor:
    """Executor protocol over a hash. `needs` are the KV groups, `nan_tokens` the ids that make the row after them fail."""

    def __init__(
        self,
        needs: list[GroupNeed],
        *,
        vocab_size: int = 512,
        max_tokens: int = 512,
        max_requests: int = 64,
        max_inflight: int = 2,
        nan_tokens: frozenset[int] = frozenset(),
    ) -> None:
        features = frozenset({"late_mask", "host_logits", "device_drafts", "lora", "lora.embeddings"})
        self.limits = Limits(max_tokens=max_tokens, max_requests=max_requests, max_inflight=max_inflight, features=features)
        self.model = NullModel(vocab_size, nan_tokens)
        self._needs = needs
        self._pages: NullPages | None = None
        self._state = _State()

    def load(self, plan: Any, progress: Progress) -> None:
        """Nothing to load."""
        progress("load", 1.0)

    def kv_needs(self) -> list[GroupNeed]:
        """The groups given at construction."""
        return list(self._needs)

    def kv_allocate(self, plan: KVPlan) -> None:
        """Zeroed pages for every group."""
        self._pages = NullPages(plan)

    def warm_up(self, progress: Progress) -> None:
        """Nothing to warm."""
        progress("warm up", 1.0)

    def submit(self, step: Step) -> Ticket:
        """Take the step and run what can run now."""
        if len(self._state.queue) >= self.limits.max_inflight:
            raise RuntimeError(f"{len(self._state.queue)} steps are in flight, the limit is {self.limits.max_inflight}")
        if step.num_tokens > self.limits.max_tokens:
            raise RuntimeError(f"step {step.seq} brings {step.num_tokens} tokens, the limit is {self.limits.max_tokens}")
        pending = _Pending(step)
        self._state.queue.append(pending)
        self._progress()
        return Ticket(step.seq, tuple(step.slot.tolist()), pending)

    def release(self, ticket: Ticket, late: Late) -> None:
        """Sample a late step; the steps before it must have been sampled."""
        pending: _Pending = ticket.payload
        if not pending.step.late or pending.late is not None:
            raise RuntimeError(f"step {ticket.seq} is not late, or was released before")
        pending.late = late
        self._progress()

    def _progress(self) -> None:
        """Run whatever can run, in order."""
        for pending in self._state.queue:
            if pending.done is not None:
                continue
            if pending.status is None:
                self._apply_changes(pending.step)
                pending.status = self._forward(pending.step)
                pending.views = [self._slot(slot).view for slot in pending.step.samples[:, 0].tolist()]
            if pending.step.late and pending.late is None:
                return
            self._sample(pending, pending.status, pending.late or Late())

    def collect(self, ticket: Ticket) -> StepOutput:
        """The oldest step's output."""
        pending = self._state.queue.popleft()
        out = pending.done
        if pending is not ticket.payload:
            raise RuntimeError(f"step {ticket.seq} collected out of order: step {pending.step.seq} is older")
        if out is None:
            raise RuntimeError(f"step {ticket.seq}, or a late one before it, was not released")
        out.kv_done = np.array(self._state.kv_done, np.int32)
        self._state.kv_done = []
        return out

    def control(self, cmd: Control) -> Reply:
        """`stats` answers; `lora_add` and `lora_remove` are taken note of, tokens stay as they are; anything else is refused by name."""
        if cmd.kind == "stats":
            return Reply(True, {"slots": len(self._state.slots), "in_flight": len(self._state.queue)})
        if cmd.kind == "lora_add":
            self._state.adapters.add(cmd.args["slot"])
            return Reply(True)
        if cmd.kind == "lora_remove":
            if not self._state.queue:  # a step in flight may still name it
                self._state.adapters.discard(cmd.args["slot"])
            return Reply(True)
        return Reply(False, error=f"the null executor does not know the control {cmd.kind!r}")

    def close(self) -> None:
        """Forget everything."""
        self._state = _State()
        self._pages = None

    def check_slots(self, expected: dict[int, list[int]]) -> None:
        """Raise AssertionError unless exactly these slots are in use with these known tokens (tests)."""
        actual = {slot: kept.view.history[: len(expected.get(slot, kept.view.history))] for slot, kept in self._state.slots.items()}
        assert actual == expected, f"slots differ: executor {actual}, scheduler {expected}"

    # -- one step ------------------------------------------------------------------------------------------------------

    def _slot(self, slot: int) -> _Slot:
        try:
            return self._state.slots[slot]
        except KeyError:
            raise KVFault(f"slot {slot} has rows but no request joined it") from None

    def _apply_changes(self, step: Step) -> None:
        pages = self._need_pages()
        for slot in step.left.tolist():
            if self._state.slots.pop(slot, None) is None:
                raise KVFault(f"slot {slot} left but nobody was in it")
            pages.clear_row(slot)
        for joined in step.joined:
            if joined.fork_of < 0:
                self._join(joined, joined.tokens.tolist())
        for group, rows in enumerate(step.new_blocks):
            pages.set_blocks(group, rows)
        for joined in step.joined:
            if joined.fork_of >= 0:
                self._join(joined, list(self._slot(joined.fork_of).view.history))
                pages.copy_row(joined.fork_of, joined.slot)
        self._state.kv_done += pages.run_ops(step.kv_ops)

    def _join(self, joined: Joined, history: list[int]) -> None:
        if joined.slot in self._state.slots:
            raise KVFault(f"slot {joined.slot} joined while it is in use")
        if joined.lora_slot >= 0 and joined.lora_slot not in self._state.adapters:
            raise KVFault(f"slot {joined.slot} uses LoRA slot {joined.lora_slot}, which holds no adapter")
        if not 0 <= joined.slot < self.limits.max_requests:
            raise KVFault(f"slot {joined.slot} is outside 0..{self.limits.max_requests - 1}")
        self._state.slots[joined.slot] = _Slot(SlotView(history, joined.prompt_len, joined.row, list(history[-1:])))

    def _forward(self, step: Step) -> np.ndarray:
        """Write and check the rows of every request; u8 [N] status."""
        pages = self._need_pages()
        status = np.zeros(step.num_requests, np.uint8)
        first = 0
        drafted = {int(slot): int(rows) - 1 for slot, _, rows in step.samples}
        for index, (slot, q, start) in enumerate(zip(step.slot.tolist(), step.q.tolist(), step.start.tolist(), strict=True)):
            kept = self._slot(slot)
            view = kept.view
            if kept.failed:
                first += q
                continue
            tokens = [view.history[-1] if token == -1 else token for token in step.tokens[first : first + q].tolist()]
            first += q
            drafts = drafted.get(slot, 0)
            kept.drafted |= drafts > 0
            known = view.history[start : start + q - drafts]
            if tokens[: q - drafts] != known:
                raise KVFault(f"slot {slot}: rows {start}..{start + q - 1} bring {tokens}, its history says {known}")
            view.rows = tokens
            sequence = [*view.history[:start], *tokens]
            pages.forward(slot, sequence, start, drafts, check_tail=not kept.drafted)
            if any(token in self.model.nan_tokens for token in known):
                status[index] = Status.NAN
        return status

    def _sample(self, pending: _Pending, forward_status: np.ndarray, late: Late) -> None:
        step = pending.step
        dead = {slot for slot, status in zip(step.slot.tolist(), forward_status.tolist(), strict=True) if status != Status.OK}
        dead |= {slot for slot, kept in self._state.slots.items() if kept.failed}
        out = sample_step(self.model, step, pending.views, dead, late)
        out.prompt_lp = score_step(self.model, step, [self._state.slots[int(slot)].view for slot in step.score[:, 0]])
        mask_dead = {int(slot) for slot, count in zip(step.samples[:, 0], out.count, strict=True) if count == 0} - dead
        for index, slot in enumerate(step.slot.tolist()):
            out.status[index] = Status.MASK_DEAD if slot in mask_dead else forward_status[index]
            self._state.slots[slot].failed |= bool(out.status[index])
        out.t_us = (20 * step.num_tokens + 200, 5 * len(step.samples), 0)
        pending.done = out

    def _need_pages(self) -> NullPages:
        if self._pages is None:
            raise RuntimeError("kv_allocate was not called")
        return self._pages
