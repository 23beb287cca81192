"""Driver: plays the scheduler for one executor, so that a test can write its Steps by hand: slots, blocks, chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llmx.executor import Executor, Joined, KVPlan, Late, SamplingRow, Step, StepOutput, Want
from llmx.kv.groups import plan_kv

__all__ = ["Driver", "kv_plan", "logits_of", "mask_of"]


@dataclass
class Driver:
    """Plays the scheduler. Every request gets blocks for `room` tokens past its prompt, in every group of `executor`."""

    executor: Any  # an Executor, with what else a test wants of its own
    room: int = 64
    seq: int = 0
    next_block: int = 1
    done: dict[int, int] = field(default_factory=dict)  # slot -> tokens whose KV is valid

    def join(self, requests: Mapping[int, Sequence[int]], row: SamplingRow | None = None, lora: Mapping[int, int] = MappingProxyType({})) -> None:
        """Requests take slots in a step of their own. lora: slot -> the LoRA slot that it uses."""
        joined, blocks = [], []
        for slot, tokens in requests.items():
            count = -(-(len(tokens) + self.room) // 16)
            blocks += [(slot, i, self.next_block + i) for i in range(count)]
            self.next_block += count
            joined.append(Joined(slot, np.array(tokens, np.int32), len(tokens), row or SamplingRow(), lora.get(slot, -1)))
            self.done[slot] = 0
        self.run(Step(self.seq, joined=joined), np.array(blocks, np.int32).reshape(-1, 3))

    def leave(self, *slots: int) -> None:
        """Slots are given up."""
        self.run(Step(self.seq, left=np.array(slots, np.int32)))

    def step(self, rows: Mapping[int, Sequence[int]], sample: Iterable[int] | None = None, want: Want | None = None) -> StepOutput:
        """Rows per slot at its next positions; slots in `sample` (all by default) draw a token from their last row."""
        slots = list(rows)
        q = np.array([len(rows[s]) for s in slots], np.int32)
        ends = np.cumsum(q) - 1
        drawn = [i for i, s in enumerate(slots) if sample is None or s in set(sample)]
        step = Step(
            self.seq,
            slot=np.array(slots, np.int32),
            q=q,
            start=np.array([self.done[s] for s in slots], np.int32),
            tokens=np.array([t for s in slots for t in rows[s]], np.int32),
            head=ends[drawn].astype(np.int32),
            samples=np.array([(slots[i], k, 1) for k, i in enumerate(drawn)], np.int32).reshape(-1, 3),
            want=[want] * len(drawn) if want else [],
        )
        for s in slots:
            self.done[s] += len(rows[s])
        return self.run(step)

    def step_of(self, rows: Mapping[int, Sequence[int]], **fields: Any) -> Step:
        """A Step of these rows at the slots' next positions, not run; every row is a head row unless `fields` say otherwise."""
        q = np.array([len(r) for r in rows.values()], np.int32)
        step = Step(
            self.seq,
            slot=np.array(list(rows), np.int32),
            q=q,
            start=np.array([self.done[s] for s in rows], np.int32),
            tokens=np.array([t for r in rows.values() for t in r], np.int32),
            head=np.arange(q.sum(), dtype=np.int32),
        )
        for s, tokens in rows.items():
            self.done[s] += len(tokens)
        return replace(step, **fields)

    def last_rows(self, rows: Mapping[int, Sequence[int]]) -> np.ndarray:
        """Step.samples of a `step_of` these rows: every slot draws from its last row."""
        ends = np.cumsum([len(r) for r in rows.values()]) - 1
        return np.array([(slot, end, 1) for slot, end in zip(rows, ends, strict=True)], np.int32)

    def late(self, rows: Mapping[int, Sequence[int]], late: Late, want: Want | None = None) -> StepOutput:
        """A step of these rows whose sampling waits for `late`."""
        step = self.step_of(rows, samples=self.last_rows(rows), late=True, want=[want] * len(rows) if want else [])
        step.new_blocks = self._no_blocks()
        self.seq += 1
        ticket = self.executor.submit(step)
        self.executor.release(ticket, late)
        out: StepOutput = self.executor.collect(ticket)
        return out

    def score(self, slot: int, tokens: Sequence[int], rows: int, top: int = 2) -> StepOutput:
        """A step of these tokens whose first `rows` rows are scored against the tokens that follow; none is drawn."""
        step = self.step_of({slot: tokens}, score=np.array([(slot, 0, rows)], np.int32), score_top=np.array([top], np.int32))
        step.head = step.head[:rows]
        return self.run(step)

    def generate(
        self, prompts: Mapping[int, Sequence[int]], n: int, chunk: int = 1000, logprobs: int = 20, lora: Mapping[int, int] = MappingProxyType({})
    ) -> dict[int, list[tuple[int, tuple[float, ...]]]]:
        """Join, prefill in chunks, decode: per slot n tokens with the logprobs of the most likely ones (their bits count)."""
        self.join(prompts, lora=lora)
        result: dict[int, list[tuple[int, tuple[float, ...]]]] = {slot: [] for slot in prompts}
        want = Want(top_logprobs=logprobs)
        while any(len(r) < n for r in result.values()):
            rows: dict[int, Sequence[int]] = {}
            budget = self.executor.limits.max_tokens
            for slot, prompt in prompts.items():
                left = prompt[self.done[slot] :]
                rows[slot] = left[: min(chunk, max(budget - len(prompts), 1))] if left else [-1]
                budget -= len(rows[slot])
            finishing = [s for s in rows if self.done[s] + len(rows[s]) >= len(prompts[s])]
            out = self.step(rows, finishing, want)
            for i, slot in enumerate(finishing):
                assert out.count[i] == 1 and out.lp is not None
                result[slot].append((int(out.tokens[i, 0]), tuple(out.lp[i, 0].tolist())))
        self.leave(*prompts)
        return {slot: r[:n] for slot, r in result.items()}

    def _no_blocks(self) -> tuple[np.ndarray, ...]:
        return tuple(np.empty((0, 3), np.int32) for _ in self.executor.kv_needs())

    def run(self, step: Step, blocks: np.ndarray | None = None) -> StepOutput:
        """One Step as written. blocks: i32 [n, 3] (slot, index, block), given in every group; without it those that the Step names, or none."""
        if blocks is not None:
            step.new_blocks = tuple(blocks for _ in self.executor.kv_needs())
        elif not step.new_blocks:
            step.new_blocks = self._no_blocks()
        self.seq += 1
        out: StepOutput = self.executor.collect(self.executor.submit(step))
        return out


def mask_of(vocab: int, *allowed: Iterable[int]) -> np.ndarray:
    """Late.mask: u32 [rows, ceil(vocab / 32)], one row per iterable of token ids that may be drawn."""
    words = np.zeros((len(allowed), -(-vocab // 32)), np.uint32)
    for row, ids in enumerate(allowed):
        for token in ids:
            words[row, token >> 5] |= np.uint32(1 << (token & 31))
    return words


def logits_of(executor: Executor, seq: int, rows: Mapping[int, Sequence[int]], start: Mapping[int, int]) -> dict[int, np.ndarray]:
    """f32 [rows, V] per slot: raw logits of every row of a step; nothing is drawn (every sample is dropped).

    The executor must have the features late_mask and host_logits. seq: the Step's number.
    """
    seen: list[np.ndarray] = []

    def keep(logits: np.ndarray) -> np.ndarray:
        seen.append(logits.copy())
        return logits

    q = np.array([len(tokens) for tokens in rows.values()], np.int32)
    owners = np.repeat(np.array(list(rows), np.int32), q)
    step = Step(
        seq,
        slot=np.array(list(rows), np.int32),
        q=q,
        start=np.array([start[slot] for slot in rows], np.int32),
        tokens=np.array([t for tokens in rows.values() for t in tokens], np.int32),
        head=np.arange(q.sum(), dtype=np.int32),
        samples=np.array([(slot, row, 1) for row, slot in enumerate(owners)], np.int32),
        new_blocks=tuple(np.empty((0, 3), np.int32) for _ in executor.kv_needs()),
        late=True,
    )
    ticket = executor.submit(step)
    executor.release(ticket, Late(host_logits=keep, drop=np.ones(len(owners), bool)))
    out = executor.collect(ticket)
    assert not out.count.any() and not out.status.any()
    return {slot: seen[0][owners == slot] for slot in rows}


def kv_plan(executor: Executor, blocks: int, max_model_len: int) -> KVPlan:
    """Pages for a test: `blocks` of them in each group that grows with the text."""
    limits = executor.limits
    sizes = {"max_requests": limits.max_requests, "max_model_len": max_model_len, "max_chunk": limits.max_tokens}
    return plan_kv(executor.kv_needs(), kv_bytes=0, num_blocks=blocks, **sizes)
