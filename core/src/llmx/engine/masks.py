"""LateMasks: the token masks of late steps, filled on a thread while the forward runs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from llmx.engine.processors import host_logits
from llmx.executor.base import Late
from llmx.request import Request
from llmx.sched.step_builder import Scheduled
from llmx.structured.constraint import Constraint
from llmx.structured.grammar import Backend, Matcher, mask_words

__all__ = ["LateMasks"]


class LateMasks:
    """One engine's masks. `begin` before the forward where all tokens are known by then, `late` before sampling, in the order of the steps."""

    def __init__(self, vocab_size: int) -> None:
        self._words = mask_words(vocab_size)
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Future[Late] | None = None

    def begin(self, scheduled: Scheduled) -> None:
        """Start filling the masks of a late step whose requests have no token in flight."""
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="llmx-masks")
        self._begun = self._pool.submit(self._fill, _rows(scheduled))

    def late(self, scheduled: Scheduled) -> Late:
        """What the step's sampling waits for; rows of requests that have ended, or whose grammar failed, are dropped."""
        begun, self._begun = self._begun, None
        rows = _rows(scheduled)
        late = begun.result() if begun is not None else self._fill(rows)
        assert late.drop is not None
        late.host_logits = host_logits(rows)
        late.drop |= [request.finished for request in rows]
        for request in rows:
            if request.constraint is not None and request.constraint.done:
                request.constraint = None  # from now on its steps wait for nothing, and may bring drafts
        return late

    def close(self) -> None:
        """Stop the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fill(self, samples: list[Request]) -> Late:
        """samples: whose each sample row is. A request with a grammar has one: it brings no drafts."""
        mask = np.empty((len(samples), self._words), np.uint32)
        shares: dict[int, tuple[Backend, list[tuple[int, Request, Constraint]]]] = {}
        opened = np.ones(len(samples), np.bool_)
        for row, request in enumerate(samples):
            constraint = request.constraint
            if constraint is not None and not constraint.open and not request.finished:
                opened[row] = False
                shares.setdefault(id(constraint.backend), (constraint.backend, []))[1].append((row, request, constraint))
        drop = np.zeros(len(samples), np.bool_)
        for backend, share in shares.values():
            _fill_share(backend, share, mask, drop)
        return Late(mask=mask, open=opened, drop=drop)


def _matched(constraint: Constraint, new: list[int]) -> tuple[Matcher | None, list[int]]:
    """(the matcher that fills this row, the tokens it takes first); None inside reasoning. While it is not known whether the answer begins with
    reasoning, a matcher of its own looks what the grammar would allow."""
    gate = constraint.gate
    if gate is None:
        return constraint.matcher, new
    ours = gate.take(new)
    if gate.undecided and constraint.compiled is not None:
        return constraint.compiled.matcher(), gate.held
    return (constraint.matcher if gate.over else None), ours


def _reason(constraint: Constraint, matcher: Matcher | None, row: np.ndarray) -> None:
    """Write what reasoning allows into a mask row (u32 [words], changed in place)."""
    gate = constraint.gate
    if gate is None or gate.over:
        return
    if matcher is None:
        gate.inside_mask(row)
        return
    if matcher.error is not None:  # begun like the start marker, and nothing that the grammar takes
        row[:] = 0
    gate.open_start(row)


def _rows(scheduled: Scheduled) -> list[Request]:
    """Whose each sample row of the step is."""
    counts = scheduled.step.samples[:, 2].tolist()
    return [request for request, count in zip(scheduled.samples, counts, strict=True) for _ in range(count)]


def _fill_share(backend: Backend, share: list[tuple[int, Request, Constraint]], mask: np.ndarray, drop: np.ndarray) -> None:
    tokens = [request.tokens[request.prompt_len + constraint.taken :] for _, request, constraint in share]
    try:
        given = [_matched(constraint, new) for (_, _, constraint), new in zip(share, tokens, strict=True)]
        live = [(matcher, ours, row) for (matcher, ours), (row, _, _) in zip(given, share, strict=True) if matcher is not None]
        backend.fill([one[0] for one in live], [one[1] for one in live], [one[2] for one in live], mask)
        for (row, _, constraint), (matcher, _) in zip(share, given, strict=True):
            _reason(constraint, matcher, mask[row])
    except Exception as error:  # noqa: BLE001 - a foreign library may raise anything; the engine and the others must live
        for _, _, constraint in share:
            constraint.error = f"the grammar backend {backend.name!r} failed: {type(error).__name__}: {error}"
    for (row, _, constraint), new in zip(share, tokens, strict=True):
        constraint.taken += len(new)
        if constraint.matcher.error is not None and constraint.error is None:
            constraint.error = f"the grammar cannot go on: {constraint.matcher.error}"
        if constraint.error is not None:
            drop[row] = True
        elif constraint.taken < constraint.min_tokens:
            constraint.without_stops(mask[row])
