"""Repeat: a step of plain decoding made from the one before, which differed only in where its rows stand.

Most steps of a busy engine have the rows of the step before: nobody came, left, was forked or is still in its prompt. Then most arrays of
the Step stay, and an executor may tell by their identity that it has them already. After a forward the processor's caches hold
weights, so what a step does not touch counts more than what it computes.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from llmx.batch import Step
from llmx.kv.manager import KVManager
from llmx.request import Request
from llmx.sched.scheduled import Scheduled

__all__ = ["Repeat"]


class Repeat:
    """The last step of one scheduler, as long as the next may have the same rows."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._last: Scheduled | None = None

    def remember(self, scheduled: Scheduled, running: Collection[Request]) -> None:
        """This step was submitted. It can be repeated when each of the running requests had one row in it, and drew a token."""
        step, count = scheduled.step, len(running)
        plain = 0 < scheduled.num_decoding == count == step.num_tokens == len(scheduled.samples) == len(step.head) and not step.token_types.size
        self._last = scheduled if plain and not step.draft_k else None

    def forget(self) -> None:
        """The rows of the next step are others: a request left, or comes."""
        self._last = None

    def next(self, seq: int) -> Scheduled | None:
        """The step that brings each request's next token; its counters are moved on. None when a row ends or finds no block: nothing changed."""
        last, size = self._last, self._kv.block_tokens
        if last is None:
            return None
        for request in last.samples:
            if not request.wants_token:
                return None
            # A block that the step before wrote to is there, and the request's own.
            if request.num_computed % size == 0 and not self._kv.extend(request, request.num_computed + 1):
                return None
        new_blocks, kv_ops = self._kv.take_changes()
        old, tokens, rows = last.step, [], []
        for request in last.samples:
            known = request.tokens
            tokens.append(known[request.num_computed] if request.num_computed < len(known) else -1)
            request.num_computed += 1
            request.steps_in_flight += 1
            request.num_pending += 1
            rows.append((request, request.num_computed))
        step = Step(
            seq=seq,
            slot=old.slot,
            q=old.q,
            start=old.start + 1,
            tokens=np.array(tokens, np.int32),
            new_blocks=new_blocks,
            kv_ops=kv_ops,
            head=old.head,
            samples=old.samples,
            want=old.want,
            late=old.late and any(request.constraint is not None for request in last.samples),
        )
        self._last = Scheduled(step, rows, last.samples, [], last.num_decoding, 0)
        return self._last
