"""StepBuilder: collects rows, samples and score spans of one step and lays them out as a Step.

Rows go in the order short first (decode rows, then chunks), so that an executor may treat the uniform front alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llmx.batch import EMPTY_I32, Joined, Step, Want
from llmx.request import Request
from llmx.sched.pooled_rows import add_pooled, token_types
from llmx.sched.scheduled import Scheduled

__all__ = ["StepBuilder"]


@dataclass(slots=True)
class StepBuilder:
    """One step in the making. `add` decides nothing; the scheduler does."""

    joined: list[Joined] = field(default_factory=list)
    forks: list[Joined] = field(default_factory=list)
    rows: dict[Request, int] = field(default_factory=dict)  # request -> q
    drafts: dict[Request, list[int]] = field(default_factory=dict)  # behind decode rows; counted in q
    num_tokens: int = 0
    draft_k: int = 0

    def add(self, request: Request, q: int) -> None:
        """The request brings its next q tokens."""
        self.rows[request] = q
        self.num_tokens += q

    def join(self, request: Request, *, fork_of: int = -1) -> None:
        """The request takes its slot in this step."""
        tokens = EMPTY_I32 if fork_of >= 0 else request.token_array()
        entry = Joined(request.slot, tokens, request.prompt_len, request.row, request.lora_slot, fork_of=fork_of)
        (self.joined if fork_of < 0 else self.forks).append(entry)

    def finish(self, seq: int, left: list[int], new_blocks: tuple[np.ndarray, ...], kv_ops: np.ndarray) -> Scheduled:
        """Lay out the Step. The requests' counters are those before the step; `_advance` in the scheduler moves them after."""
        layout = _Layout()
        for request, q in sorted(self.rows.items(), key=lambda item: item[1]):
            drafts = self.drafts.get(request, []) if q > 1 else []
            layout.add(request, q - len(drafts))
            if drafts:
                layout.add_drafts(drafts)
        step = Step(
            seq=seq,
            slot=np.array(layout.slot, np.int32),
            q=np.array(layout.q, np.int32),
            start=np.array(layout.start, np.int32),
            tokens=np.array(layout.tokens, np.int32),
            joined=self.joined + self.forks,
            left=np.array(left, np.int32),
            new_blocks=new_blocks,
            kv_ops=kv_ops,
            head=np.array(layout.head, np.int32),
            samples=np.array(layout.samples, np.int32).reshape(-1, 3),
            score=np.array(layout.score, np.int32).reshape(-1, 3),
            want=layout.want if any(want is not None for want in layout.want) else [],
            score_top=np.array(layout.score_top, np.int32),
            draft_k=self.draft_k,
            late=any(request.constraint is not None for request in layout.sampled),
            token_types=token_types(layout.rows, layout.q),
        )
        return Scheduled(step, layout.rows, layout.sampled, layout.scored, layout.num_decoding, len(layout.tokens) - layout.num_decoding, layout.pooled)


@dataclass(slots=True)
class _Layout:
    slot: list[int] = field(default_factory=list)
    q: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    head: list[int] = field(default_factory=list)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    score: list[tuple[int, int, int]] = field(default_factory=list)
    score_top: list[int] = field(default_factory=list)
    want: list[Want | None] = field(default_factory=list)
    rows: list[tuple[Request, int]] = field(default_factory=list)
    sampled: list[Request] = field(default_factory=list)
    scored: list[Request] = field(default_factory=list)
    pooled: list[tuple[Request, slice]] = field(default_factory=list)
    num_decoding: int = 0

    def add(self, request: Request, q: int) -> None:
        start = request.num_computed
        end = start + q
        self.slot.append(request.slot)
        self.q.append(q)
        self.start.append(start)
        known = request.tokens[start:end]
        self.tokens.extend(known)
        self.tokens.extend([-1] * (q - len(known)))
        self.rows.append((request, end))
        if q == 1 and start >= request.prompt_len:
            self.num_decoding += 1
        row = len(self.tokens) - q
        self._add_scores(request, row, start, end)
        add_pooled(request, start, end, row, self.head, self.pooled)
        if end == request.num_scheduled_total and request.wants_token:
            self._add_samples(request, row + q - 1)

    def add_drafts(self, drafts: list[int]) -> None:
        """Behind the decode row added last. They are not certain: the update counts those that were accepted."""
        self.q[-1] += len(drafts)
        self.num_decoding += len(drafts)
        self.samples[-1] = *self.samples[-1][:2], 1 + len(drafts)
        self.head.extend(range(len(self.tokens), len(self.tokens) + len(drafts)))
        self.tokens.extend(drafts)

    def _add_scores(self, request: Request, row: int, start: int, end: int) -> None:
        top = request.params.prompt_logprobs
        if top is None:
            return
        first, last = max(start, request.num_scored), min(end, request.prompt_len - 1)
        if first < last:
            self.score.append((request.slot, len(self.head), last - first))
            self.score_top.append(top)
            self.scored.append(request)
            self.head.extend(range(row + first - start, row + last - start))

    def _add_samples(self, request: Request, row: int) -> None:
        top = request.params.logprobs
        for one in (request, *request.children):
            self.samples.append((one.slot, len(self.head), 1))
            self.want.append(None if top is None else Want(top, request.asked_ids))
            self.sampled.append(one)
        self.head.append(row)
