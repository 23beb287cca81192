"""DraftLoop: guesses of a Program at the end of a step, for any executor that can run rows of it.

The Program reads what the request's tokens are and keeps pages of its own, in the blocks that the request has anyway. The loop knows how far these
pages are filled: a block that comes from the prefix cache may be filled or not, and rejected guesses leave rows that are written again. So the
Program may be left out of steps, and catches up when guesses are wanted again. Nothing here can change an answer.

A Program that reads hidden rows has at position p the model's row of p and the token behind it, p + 1 (docs/adr/0021-hidden-rows.md). Rows of guesses read
what the Program itself gave in the run before, so they are computed again with the model's own row once that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

import numpy as np

from llmx.batch import KvOp, Step, StepOutput
from llmx.executor.draft_shape import DraftRows, DraftShape, Forward
from llmx.kv.spec import KVPlan

__all__ = ["DraftLoop"]


@dataclass(slots=True)
class _Kept:
    """A slot. valid: leading tokens whose rows the pages hold; ahead: guesses whose rows they hold behind these; fresh: it joined in this step."""

    tokens: list[int]
    valid: int = 0
    ahead: list[int] = field(default_factory=list)
    fresh: bool = True


@dataclass(slots=True)
class _Turn:
    """One slot's part in a step: rows first .. end - 1, and the sample that gets its guesses (-1: its prompt goes on). masks: rows behind, of guesses."""

    slot: int
    kept: _Kept
    first: int
    end: int
    sample: int
    masks: int = 0


class DraftLoop:
    """The drafts of one executor. `change` sees every step, before its pages change; `draft` closes it. shape.states: at least one."""

    def __init__(self, plan: KVPlan, shape: DraftShape, max_tokens: int) -> None:
        self._max_tokens, self._max_len = max_tokens, plan.max_model_len
        self._shift, self._mask = int(shape.hidden > 0), shape.mask
        states = shape.states
        groups = [index for index, group in enumerate(plan.groups) if set(group.need.states) & set(states)]
        self._block = plan.groups[groups[0]].need.block_tokens if groups else 1
        length = -(-plan.max_model_len // self._block) + 1
        self._tables = {group: np.zeros((plan.max_requests, length), np.int32) for group in groups}
        self._filled = {group: np.zeros(plan.groups[group].num_blocks, np.int32) for group in groups}  # leading kv slots of a block that hold their rows
        self._windows = {group: spec.window for group in groups if (spec := plan.groups[group].need.spec).kind == "sliding" and spec.window is not None}
        self._kept: dict[int, _Kept] = {}
        self._forked: set[int] = set()  # in this step: their last block is still shared

    # -- what steps change -----------------------------------------------------------------------------------------------------

    def change(self, step: Step) -> None:
        """Take in who left and joined, and which blocks went where."""
        for slot in step.left.tolist():
            self._kept.pop(slot, None)
            for table in self._tables.values():
                table[slot] = 0
        for joined in step.joined:
            if joined.fork_of < 0:
                self._kept[joined.slot] = _Kept(joined.tokens.tolist())
        if any(len(rows) for rows in step.new_blocks):
            self._place(step)
        for op, group, src, dst in step.kv_ops.tolist():
            if group in self._filled and op in (KvOp.ZERO, KvOp.COPY):
                self._filled[group][dst] = self._filled[group][src] if op == KvOp.COPY else 0
        self._forked = set()
        for joined in step.joined:
            if joined.fork_of >= 0:
                self._fork(joined.fork_of, joined.slot)

    def _place(self, step: Step) -> None:
        starts = dict(zip(step.slot.tolist(), step.start.tolist(), strict=True))
        for group, table in self._tables.items():
            for slot, index, block in step.new_blocks[group].tolist():
                table[slot, index] = block
                kept = self._kept.get(slot)
                if kept is None or not block or (kept.fresh and (index + 1) * self._block <= starts.get(slot, 0)):
                    continue  # given back, or found in the prefix cache with whatever it holds
                self._filled[group][block] = 0
                if kept.valid + len(kept.ahead) > index * self._block:
                    kept.valid, kept.ahead = min(kept.valid, index * self._block), []

    def _fork(self, parent: int, child: int) -> None:
        kept = self._kept[parent]
        self._kept[child] = _Kept(list(kept.tokens), kept.valid)
        self._forked |= {parent, child}
        for table in self._tables.values():
            table[child] = table[parent]

    # -- guesses ---------------------------------------------------------------------------------------------------------------

    def draft(self, step: Step, out: StepOutput, forward: Forward) -> None:
        """Take in the drawn tokens and, where the step asks for guesses, write out.drafts and the time they took."""
        for slot, count, tokens in zip(step.samples[:, 0].tolist(), out.count.tolist(), out.tokens.tolist(), strict=True):
            self._kept[slot].tokens += tokens[:count]
        if step.draft_k:
            began = perf_counter_ns()
            out.drafts = np.full((len(step.samples), step.draft_k), -1, np.int32)
            self._guess(self._turns(step, out), out.drafts, forward)
            out.t_us = (out.t_us[0], out.t_us[1], (perf_counter_ns() - began) // 1000)
        for slot in step.slot.tolist():
            self._kept[slot].fresh = False

    def _turns(self, step: Step, out: StepOutput) -> list[_Turn]:
        """Who has rows to compute, as many as a step may have; those with guesses to make first."""
        samples = {slot: index for index, (slot, count) in enumerate(zip(step.samples[:, 0].tolist(), out.count.tolist(), strict=True)) if count}
        turns, room = [], self._max_tokens
        for slot, q, start in zip(step.slot.tolist(), step.q.tolist(), step.start.tolist(), strict=True):
            kept, sample = self._kept[slot], -1 if slot in self._forked else samples.get(slot, -1)
            self._sync(slot, kept)
            end = len(kept.tokens) - self._shift if sample >= 0 else min(start + q, len(kept.tokens) - 1)
            first = min(kept.valid, end - 1)
            if kept.valid >= end and sample < 0:
                continue
            if end - first > room:
                end, sample = first + room, -1
            if end > first and self._has(slot, first, end):
                masks = self._masks(slot, end, min(step.draft_k - 1, room - (end - first))) if sample >= 0 and self._mask >= 0 else 0
                turns.append(_Turn(slot, kept, first, end, sample, masks))
                room -= end - first + masks
        return turns

    def _masks(self, slot: int, end: int, most: int) -> int:
        """For how many rows behind the last token there are places."""
        while most > 0 and not self._has(slot, end, end + most):
            most -= 1
        return max(most, 0)

    def _sync(self, slot: int, kept: _Kept) -> None:
        """How far the pages are filled with what the request's tokens are now."""
        before = kept.valid
        while kept.ahead and kept.valid < len(kept.tokens) and kept.tokens[kept.valid] == kept.ahead[0]:
            kept.valid += 1
            kept.ahead.pop(0)
        kept.ahead = []
        self._mark(slot, before, kept.valid)
        found = kept.valid
        while found < len(kept.tokens):
            index = found // self._block
            filled = min(self._filled_of(group, slot, index) for group in self._tables)
            if index * self._block + filled <= found:
                break
            found = min(index * self._block + filled, len(kept.tokens))
        if all(self._tables[group][slot, max(found - window + 1, 0) // self._block] for group, window in self._windows.items() if found):
            kept.valid = found

    def _filled_of(self, group: int, slot: int, index: int) -> int:
        """How much of a block is there: all of one that a window has passed, and may never need again."""
        block = int(self._tables[group][slot, index])
        return int(self._filled[group][block]) if block else self._block if group in self._windows else 0

    def _mark(self, slot: int, first: int, end: int) -> None:
        """Rows first .. end - 1 of a request are in its pages, and all before them."""
        for group, table in self._tables.items():
            for index in range(max(first - 1, 0) // self._block, -(-end // self._block)):
                block, held = int(table[slot, index]), min(end - index * self._block, self._block)
                if block:
                    self._filled[group][block] = max(int(self._filled[group][block]), held)

    def _has(self, slot: int, first: int, end: int) -> bool:
        """Whether there are blocks for these rows, and for what their windows see: one that lags behind by more than its window does not catch up."""
        if end > self._max_len:  # a sequence never grows past its longest
            return False
        size = self._block
        return all((table[slot, max(first - self._windows.get(g, 1) + 1, 0) // size : -(-end // size)] > 0).all() for g, table in self._tables.items())

    def _guess(self, turns: list[_Turn], drafts: np.ndarray, forward: Forward) -> None:
        if not turns:
            return
        guessing = [turn for turn in turns if turn.sample >= 0]
        given = forward(self._rows(turns)).reshape(-1)
        for turn in turns:
            turn.kept.valid = turn.end
            self._mark(turn.slot, turn.first, turn.end)
        if self._mask >= 0:
            first = 0
            for turn in guessing:
                drafts[turn.sample, : 1 + turn.masks] = given[first : first + 1 + turn.masks]
                first += 1 + turn.masks
            return
        for at in range(drafts.shape[1]):
            for turn, token in zip(guessing, given.tolist(), strict=True):
                drafts[turn.sample, at] = token
            if at + 1 == drafts.shape[1]:
                break
            on = [self._has(turn.slot, turn.end + at, turn.end + at + 1) for turn in guessing]
            given, guessing = given[on], [turn for turn, goes in zip(guessing, on, strict=True) if goes]
            if not guessing:
                break
            for turn, token in zip(guessing, given.tolist(), strict=True) if not self._shift else ():
                turn.kept.ahead.append(token)
            one, behind = np.ones(len(guessing), np.int32), np.flatnonzero(on).astype(np.int32)
            starts = np.array([turn.end + at for turn in guessing], np.int32)
            slots = np.array([turn.slot for turn in guessing], np.int32)
            given = forward(DraftRows(slots, one, starts, given.astype(np.int32), np.arange(len(guessing), dtype=np.int32), behind, at + 1)).reshape(-1)

    def _rows(self, turns: list[_Turn]) -> DraftRows:
        """What the pages lack, and the rows of masks behind."""
        shift, tokens, head = self._shift, list[int](), list[int]()
        for turn in turns:
            tokens += turn.kept.tokens[turn.first + shift : turn.end + shift]
            if turn.sample >= 0:
                head += range(len(tokens) - 1, len(tokens) + turn.masks)
            tokens += [self._mask] * turn.masks
        slots, starts = (np.array(column, np.int32) for column in zip(*((turn.slot, turn.first) for turn in turns), strict=True))
        q = np.array([turn.end - turn.first + turn.masks for turn in turns], np.int32)
        return DraftRows(slots, q, starts, np.array(tokens, np.int32), np.array(head, np.int32), np.full(len(tokens), -1, np.int32))
